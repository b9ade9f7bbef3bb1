// Has the entry point, but needs a function that nothing provides: the dynamic linker must refuse it at once.
#include "dsalt/module.hpp"

extern "C" const dsalt::ModuleInterface* dsalt_test_function_that_nothing_provides();

extern "C" DSALT_API const dsalt::ModuleInterface* dsalt_backend_module() {
  return dsalt_test_function_that_nothing_provides();
}
