#define BOOST_TEST_MODULE dsalt
#include <boost/test/unit_test.hpp>
