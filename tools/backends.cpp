// dsalt backends: every backend with its state and the reason, and what "auto" and DSALT_BACKEND mean here.
#include <algorithm>
#include <cstdlib>

#include "commands.hpp"
#include "console.hpp"
#include "dsalt/errors.hpp"

namespace dsalt::tools {

int show_backends() {
  const auto list = list_backends();
  std::size_t width = 7;
  for (const BackendInfo& info : list) width = std::max(width, info.name.size());
  const auto row = [&](std::string name, const std::string& state, const std::string& detail) {
    name.resize(width, ' ');
    return name + "  " + state + "  " + detail + "\n";
  };
  std::string text = row("backend", "state      ", "what runs, or why not");
  for (const BackendInfo& info : list)
    text += row(info.name, info.available ? "available  " : "unavailable", info.detail);

  text += "\nauto ";
  try {
    text += "chooses " + std::string(make_backend("auto")->name());
  } catch (const Error& error) {
    text += "cannot be used: " + std::string(error.what());
  }
  const char* variable = std::getenv("DSALT_BACKEND");
  if (!variable || !*variable) {
    text += "; DSALT_BACKEND is not set, so auto is the default\n";
  } else {
    text += "; DSALT_BACKEND=" + std::string(variable);
    try {
      text += " is the default and chooses " + std::string(make_backend(variable)->name()) + "\n";
    } catch (const Error& error) {
      text += " is the default and cannot be used: " + std::string(error.what()) + "\n";
    }
  }
  print(text);
  return success;
}

}  // namespace dsalt::tools
