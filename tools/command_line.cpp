// The command line of `dsalt`: the only place that knows CLI11.
#include <CLI/CLI.hpp>
#include <functional>

#include "commands.hpp"
#include "console.hpp"

namespace dsalt::tools {
namespace {

constexpr const char* exit_codes =
    "Exit codes:\n"
    "  0  success\n"
    "  1  a check failed, a case could not be evaluated, or no case was executed\n"
    "  2  unknown option or subcommand, or a bad argument\n"
    "  3  the backend asked for is unavailable\n"
    "  4  a file could not be read or written, or is malformed\n"
    "  5  a device failed or memory ran out\n"
    "\n"
    "DSALT_BACKEND names the backend where --backend is not given.";

constexpr const char* backend_help = "reference, cpu, cuda, cuda:N or auto (default: DSALT_BACKEND, else auto)";
constexpr const char* case_help = "only cases whose name matches this shell pattern";

std::string with_examples(const std::string& examples) { return "Examples:\n" + examples + "\n" + exit_codes; }

/// A range check whose limits the help tells in words.
template <class Number>
CLI::Validator between(Number low, Number high) {
  return CLI::Range(low, high).description("");
}

void add_threads(CLI::App* app, int& threads) {
  app->add_option("--threads", threads, "threads of the cpu backend (default: OpenMP's)")
      ->type_name("N")
      ->check(between(1, 1 << 16));
}

void add_backends(CLI::App& app, std::function<int()>& command) {
  CLI::App* sub = app.add_subcommand("backends", "Show every backend, whether it can run here, and why not");
  sub->footer(with_examples("  dsalt backends\n  DSALT_BACKEND=cuda dsalt backends\n"));
  sub->callback([&command] { command = show_backends; });
}

void add_verify(CLI::App& app, VerifyArguments& a, std::function<int()>& command) {
  CLI::App* sub = app.add_subcommand("verify", "Compare a backend with the definition, suite by suite");
  sub->add_option("--backend", a.backend, backend_help)->type_name("B");
  sub->add_option("--suite", a.suites,
                  "equivalence, gradients, stability, determinism, causality, identities, text, or all (every suite "
                  "but text); repeatable (default: all, or text alone when --text is given)")
      ->type_name("S")
      ->expected(1)
      ->take_all();
  sub->add_option("--case", a.case_glob, case_help)->type_name("GLOB");
  sub->add_option("--text", a.text, "run the text suite on the bytes of this file")->type_name("FILE");
  sub->add_option("--report", a.report, "write one self-contained HTML page with pictures")->type_name("FILE");
  sub->add_option("--junit", a.junit, "write JUnit XML")->type_name("FILE");
  sub->add_option("--json", a.json, "write JSON")->type_name("FILE");
  sub->add_flag("--quick", a.quick, "only small cases");
  sub->add_flag(
      "--deterministic", a.deterministic,
      "make the backend in its deterministic mode (cuda), which must promise equal bytes for every operation");
  sub->add_flag("--list", a.list, "print the cases (suite and name) and stop");
  add_threads(sub, a.threads);
  sub->footer(
      with_examples("  dsalt verify --backend cpu --quick\n"
                    "  dsalt verify --backend cpu --text kjv.txt --report report.html\n"
                    "  dsalt verify --suite gradients --case 'attention*'\n"
                    "  dsalt verify --backend cuda --deterministic --suite determinism\n"
                    "  dsalt verify --suite all --text kjv.txt --junit junit.xml --json results.json\n"));
  sub->callback([&a, &command] { command = [&a] { return verify(a); }; });
}

void add_golden(CLI::App& app, GoldenArguments& a, std::function<int()>& command) {
  CLI::App* golden = app.add_subcommand("golden", "Case files in HDF5: generate, check, run, show");
  golden->require_subcommand(1);
  golden->footer(
      with_examples("  dsalt golden generate -o golden.h5 --case 'attention*'\n"
                    "  dsalt golden check golden.h5 --backend cpu\n"
                    "  dsalt golden run --backend cpu theirs.h5 -o ours.h5\n"
                    "  dsalt golden show golden.h5\n"));
  const auto action = [&](const char* name, const char* description, int (*run)(const GoldenArguments&),
                          const char* examples) {
    CLI::App* sub = golden->add_subcommand(name, description);
    sub->add_option("--case", a.case_glob, case_help)->type_name("GLOB");
    sub->footer(with_examples(examples));
    sub->callback([&a, &command, run] { command = [&a, run] { return run(a); }; });
    return sub;
  };
  const auto add_input = [&](CLI::App* sub) {
    sub->add_option("file", a.input, "case file to read")->type_name("FILE")->required();
  };
  const auto add_output = [&](CLI::App* sub) {
    sub->add_option("-o,--output", a.output, "case file to write")->type_name("FILE")->required();
  };
  const auto add_backend = [&](CLI::App* sub) {
    sub->add_option("--backend", a.backend, backend_help)->type_name("B");
    add_threads(sub, a.threads);
  };

  add_output(action("generate", "Write the golden cases with outputs by the reference; the same bytes every time",
                    golden_generate,
                    "  dsalt golden generate -o golden.h5\n"
                    "  dsalt golden generate -o rope.h5 --case 'rope*'\n"));
  CLI::App* check =
      action("check", "Recompute every case and compare with the stored outputs and with the definition", golden_check,
             "  dsalt golden check golden.h5\n"
             "  dsalt golden check golden.h5 --backend cpu --case 'attention*'\n");
  add_input(check);
  add_backend(check);
  CLI::App* run = action("run", "Evaluate the cases of any case file and write them with their outputs", golden_run,
                         "  dsalt golden run --backend reference theirs.h5 -o ours.h5\n"
                         "  dsalt golden run --backend cpu theirs.h5 -o ours.h5 --case 'merge*'\n");
  add_input(run);
  add_output(run);
  add_backend(run);
  add_input(action("show", "List the cases of a file: attributes, shapes, dtypes", golden_show,
                   "  dsalt golden show golden.h5\n"
                   "  dsalt golden show golden.h5 --case '*swiglu*'\n"));
}

void add_attention_map(CLI::App& app, AttentionMapArguments& a, std::function<int()>& command) {
  CLI::App* sub = app.add_subcommand("attention-map", "Draw what one head attends to in a text, as one SVG");
  CLI::Option* text = sub->add_option("--text", a.text, "file whose first bytes are the tokens")->type_name("FILE");
  sub->add_option("--string", a.string, "the text itself")->type_name("S")->excludes(text);
  sub->add_option("-o,--output", a.output, "picture to write")->type_name("FILE.svg")->required();
  sub->add_option("--policy", a.policy, "landmark selection: causal or global")
      ->capture_default_str()
      ->check(CLI::IsMember({"causal", "global"}));
  sub->add_option("--length", a.length, "tokens to take from the start of the text")
      ->capture_default_str()
      ->check(between<std::int64_t>(1, 4096));
  sub->add_option("--head", a.head, "query head, 0 to 3")->capture_default_str()->check(between<std::int64_t>(0, 3));
  sub->add_option("--row", a.row, "query whose keys are shown in the text below the map (default: the last)")
      ->check(between<std::int64_t>(0, 4095));
  sub->add_option("--chunk", a.chunk, "chunk of the causal policy")
      ->capture_default_str()
      ->check(between<std::int64_t>(1, 4096));
  sub->add_option("--landmarks", a.landmarks, "landmarks per list")
      ->capture_default_str()
      ->check(between<std::int64_t>(1, 4096));
  sub->add_option("--n-min", a.n_min, "smallest window")->capture_default_str()->check(between(1.0, 4096.0));
  sub->add_option("--n-max", a.n_max, "largest window")->capture_default_str()->check(between(1.0, 4096.0));
  sub->add_option("--backend", a.backend, backend_help)->type_name("B");
  add_threads(sub, a.threads);
  sub->footer(with_examples(
      "  dsalt attention-map --string 'In the beginning God created the heaven and the earth.' -o map.svg\n"
      "  dsalt attention-map --text kjv.txt --length 512 --chunk 64 --landmarks 8 --n-max 96 -o map.svg\n"
      "  dsalt attention-map --text kjv.txt --policy global --head 2 --row 40 -o map.svg\n"));
  sub->callback([&a, &command] { command = [&a] { return attention_map(a); }; });
}

/// The subcommand whose arguments were wrong, so that the hint names the right --help.
std::string path_of(const CLI::App& app) {
  const auto subs = app.get_subcommands();
  return subs.empty() ? app.get_name() : app.get_name() + " " + path_of(*subs.front());
}

void add_bench(CLI::App& app, BenchArguments& a, std::function<int()>& command) {
  CLI::App* sub = app.add_subcommand("bench", "Measure a backend and hold it against what the device can do at most");
  const auto several = [&](const char* name, std::vector<std::string>& values, const char* help, const char* type) {
    return sub->add_option(name, values, help)->type_name(type)->expected(1)->take_all();
  };
  several("--backend", a.backends,
          "reference, cpu, cuda, cuda:N or auto; repeatable (default: DSALT_BACKEND, else auto)", "B");
  several("--operation", a.operations,
          "an operation or a shell pattern of them; repeatable (default: all; with --scaling: attention)", "OP");
  several(
      "--shape", a.shapes,
      "a number of --list, or B,H[/Hkv],N[xNk],D[,MASK[,K[/Hl]]] with MASK full, causal, a window w, lo..hi or none; "
      "repeatable (default: for attention all that fit, for other operations 11)",
      "S");
  several("--dtype", a.dtypes, "f32, bf16, f16 or f64; repeatable (default: f32)", "T");
  several("--windows", a.windows,
          "windows of sparse shapes: constant (w), uniform (from w/16 to w, for each token and head) or bimodal "
          "(w/16 or w); repeatable (default: constant; shape 10: uniform)",
          "W");
  sub->add_option("--page-size", a.page_sizes,
                  "attention also with a KV cache in pages of so many keys, in an order that looks random; repeatable")
      ->type_name("P")
      ->expected(1)
      ->take_all()
      ->check(between<std::int64_t>(1, 1 << 24));
  sub->add_option("--chunk", a.chunk, "rows per landmark list in self-attention; 0: one list for all rows")
      ->type_name("C")
      ->capture_default_str()
      ->check(between<std::int64_t>(0, 1 << 24));
  sub->add_option("--min-time", a.min_time, "seconds of timed calls per row, at least three calls")
      ->type_name("S")
      ->capture_default_str()
      ->check(between(0.0, 3600.0));
  sub->add_option("--max-time", a.max_time, "seconds; a row whose call is expected to take longer is skipped")
      ->type_name("S")
      ->capture_default_str()
      ->check(between(0.0, 1e9));
  add_threads(sub, a.threads);
  sub->add_flag("--deterministic", a.deterministic, "make the backends in their deterministic mode (cuda)");
  sub->add_flag("--scaling", a.scaling, "instead: time over N from 1024 to 32768 with its slope, and over threads");
  sub->add_option("--json", a.json, "write one JSON object per row, for --compare and other programs")
      ->type_name("FILE");
  sub->add_option("--report", a.report, "write one self-contained HTML page with rooflines and scaling")
      ->type_name("FILE");
  CLI::Option* compare = sub->add_option("--compare", a.compare, "instead: show two JSON files side by side")
                             ->type_name("OLD NEW")
                             ->expected(2);
  CLI::Option* list = sub->add_flag("--list", a.list, "print operations and shapes and stop");
  for (const char* name : {"--backend", "--operation", "--shape", "--dtype", "--windows", "--scaling", "--json",
                           "--report", "--threads", "--deterministic"}) {
    compare->excludes(sub->get_option(name));
  }
  compare->excludes(list);
  sub->footer(
      "The limit of a row is the largest of FLOP over peak, exponentials over their rate (GPUs) and bytes over "
      "bandwidth,\n"
      "measured in the same run with the instruction set and threads that the backend uses, or from the datasheet of "
      "a\n"
      "GPU. Columns: docs/performance.md.\n\n" +
      with_examples("  dsalt bench --backend cpu --report bench.html --json bench.json\n"
                    "  dsalt bench --backend cpu --operation 'attention*' --shape 11 --windows uniform\n"
                    "  dsalt bench --backend cpu --operation attention --shape 1,8/2,4096,64,128..512,32 --dtype bf16\n"
                    "  dsalt bench --backend cpu --scaling --operation attention --shape 11 --shape 12\n"
                    "  dsalt bench --compare old.json new.json\n"));
  sub->callback([&a, &command] { command = [&a] { return bench(a); }; });
}

}  // namespace

int run_command_line(int argc, char** argv) {
  CLI::App app("Dynamic sparse attention with landmark tokens: run it, and prove it against its definition.", "dsalt");
  std::function<int()> command;
  VerifyArguments verify_arguments;
  GoldenArguments golden_arguments;
  AttentionMapArguments map_arguments;
  BenchArguments bench_arguments;
  verify_arguments.command = golden_arguments.command = bench_arguments.command = quoted_command(argc, argv);

  app.set_version_flag("--version", version_text, "print version, build features and detected instruction sets");
  app.require_subcommand(1);
  app.footer(
      with_examples("  dsalt backends\n"
                    "  dsalt verify --backend cpu --text kjv.txt --report report.html\n"
                    "  dsalt golden generate -o golden.h5\n"
                    "  dsalt attention-map --string 'In the beginning' -o map.svg\n"
                    "  dsalt bench --backend cpu --operation 'attention*' --shape 11\n"
                    "  dsalt verify --help\n"));
  add_backends(app, command);
  add_verify(app, verify_arguments, command);
  add_golden(app, golden_arguments, command);
  add_attention_map(app, map_arguments, command);
  add_bench(app, bench_arguments, command);

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForVersion&) {
    print(version_text() + "\n");
    return success;
  } catch (const CLI::CallForAllHelp&) {
    print(app.help("", CLI::AppFormatMode::All));
    return success;
  } catch (const CLI::CallForHelp&) {
    print(app.help());
    return success;
  } catch (const CLI::ParseError& error) {
    note(std::string(error.what()) + " (see " + path_of(app) + " --help)");
    return bad_usage;
  }
  return command();
}

}  // namespace dsalt::tools
