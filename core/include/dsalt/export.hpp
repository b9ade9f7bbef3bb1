// Symbol visibility: everything is hidden in libdsalt except what carries DSALT_API.
#pragma once

#if defined(__GNUC__) || defined(__clang__)
#define DSALT_API __attribute__((visibility("default")))
#else
#define DSALT_API
#endif
