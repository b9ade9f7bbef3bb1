// Everything a user of libdsalt needs.
#pragma once

#include "dsalt/attention.hpp"
#include "dsalt/backend.hpp"
#include "dsalt/dlpack.hpp"
#include "dsalt/dtype.hpp"
#include "dsalt/errors.hpp"
#include "dsalt/network.hpp"
#include "dsalt/registry.hpp"
#include "dsalt/selectors.hpp"
#include "dsalt/tensor.hpp"
#include "dsalt/version.hpp"
