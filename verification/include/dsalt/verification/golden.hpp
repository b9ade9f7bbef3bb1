// Golden data: case files written by the reference, and case files of others evaluated by any backend.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dsalt/verification/suites.hpp"

namespace dsalt::verification {

using Progress = std::function<void(std::string_view name, std::size_t done, std::size_t total)>;

/// Writes the golden cases whose generated name ("merge/parts/padded_similar_f32") matches the shell pattern `glob`,
/// outputs by the reference backend, to `path`; returns how many. In the file '/' becomes '.'. The same call writes the
/// same bytes. InvalidArgument when nothing matches, IoError.
DSALT_API std::size_t generate_golden(const std::string& path, const std::string& glob = "*",
                                      const Progress& progress = {});

/// Recomputes every case of the file on `backend` and compares with the double reference of its inputs and with the
/// outputs stored in the file (both must hold; the latter are listed as "stored out"). Suite name "golden". A case
/// without a single output element is skipped. IoError when the file cannot be opened; a bad case is a failed result.
DSALT_API std::vector<Result> check_golden(const std::string& path, Backend& backend, const std::string& glob = "*",
                                           const Progress& progress = {});

/// Evaluates every case of `input` on `backend` and writes the whole case (attributes, inputs, computed outputs)
/// to `output`.
/// A case that the backend does not support, or that is invalid, is reported by name with the reason; the others are
/// written. The results' status is passed, unsupported or failed; no comparison is made.
DSALT_API std::vector<Result> run_cases(const std::string& input, const std::string& output, Backend& backend,
                                        const std::string& glob = "*", const Progress& progress = {});

/// A readable listing: generator, every case with op, attributes, shapes and dtypes.
DSALT_API std::string describe_cases(const std::string& path, const std::string& glob = "*");

}  // namespace dsalt::verification
