// A sound shared object that is no module at all.
extern "C" __attribute__((visibility("default"))) int some_other_function() { return 42; }
