#include "report/xml.hpp"

namespace dsalt::verification {
namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";

/// Length of the well-formed UTF-8 sequence at the start of `text`, or 0. Surrogates, U+FFFE and U+FFFF are no XML.
std::size_t sequence_length(std::string_view text) {
  const auto byte = [&](std::size_t n) { return static_cast<unsigned char>(text[n]); };
  const unsigned char lead = byte(0);
  const std::size_t length = lead < 0x80                   ? 1
                             : lead >= 0xc2 && lead < 0xe0 ? 2
                             : lead >= 0xe0 && lead < 0xf0 ? 3
                             : lead >= 0xf0 && lead < 0xf5 ? 4
                                                           : 0;
  if (length == 0 || length > text.size()) return 0;
  for (std::size_t n = 1; n < length; ++n)
    if ((byte(n) & 0xc0) != 0x80) return 0;
  if (lead == 0xe0 && byte(1) < 0xa0) return 0;                      // overlong
  if (lead == 0xed && byte(1) >= 0xa0) return 0;                     // surrogate
  if (lead == 0xf0 && byte(1) < 0x90) return 0;                      // overlong
  if (lead == 0xf4 && byte(1) >= 0x90) return 0;                     // beyond U+10FFFF
  if (lead == 0xef && byte(1) == 0xbf && byte(2) >= 0xbe) return 0;  // U+FFFE, U+FFFF
  return length;
}

}  // namespace

std::string xml_escaped(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t length = sequence_length(text);
    const char c = text[0];
    const bool control = static_cast<unsigned char>(c) < 0x20 && c != '\t' && c != '\n' && c != '\r';
    if (length == 0 || control) {
      result += replacement;
      text.remove_prefix(1);
      continue;
    }
    switch (c) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      case '\'': result += "&#39;"; break;
      default: result += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
  return result;
}

}  // namespace dsalt::verification
