#include "experiments/text_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

namespace zeropp::experiments {

std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return std::iscntrl(c) != 0; }, '?');
  for (std::size_t i = 1; i < text.size(); ++i) {  // U+0080 to U+009F as UTF-8.
    const auto second = static_cast<unsigned char>(text[i]);
    if (text[i - 1] == '\xC2' && second >= 0x80 && second < 0xA0) text[i - 1] = text[i] = '?';
  }
  return text;
}

namespace {

/// A decorated codec's '|' would end a cell.
std::string escaped(const std::string& cell) {
  std::string out;
  for (const char c : printable(cell)) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

}  // namespace

std::string TextTable::text() const {
  std::vector<std::size_t> widths;
  for (const std::string& cell : header) widths.push_back(cell.size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      text += i == 0 ? "" : "  ";
      text += i < left ? fmt::format("{:<{}}", printable(cells[i]), widths[i])
                       : fmt::format("{:>{}}", printable(cells[i]), widths[i]);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  };
  line(header);
  std::vector<std::string> rule;
  for (const std::size_t width : widths) rule.emplace_back(width, '-');
  line(rule);
  for (const auto& row : rows) line(row);
  return out;
}

std::string TextTable::markdown() const {
  std::string out;
  const auto line = [&](const std::vector<std::string>& cells) {
    out += "|";
    for (const std::string& cell : cells) out += " " + escaped(cell) + " |";
    out += "\n";
  };
  line(header);
  std::vector<std::string> rule;
  for (std::size_t i = 0; i < header.size(); ++i) rule.emplace_back(i < left ? "---" : "---:");
  line(rule);
  for (const auto& row : rows) line(row);
  return out;
}

std::string human_bytes(double bytes) {
  constexpr std::array units = {"B", "kB", "MB", "GB", "TB", "PB"};
  std::size_t unit = 0;
  while (bytes >= 999.5 && unit + 1 < units.size()) {
    bytes /= 1000;
    ++unit;
  }
  if (unit == 0) return fmt::format("{:.0f} B", bytes);
  return fmt::format("{:.{}f} {}", bytes,
                     bytes < 9.995   ? 2
                     : bytes < 99.95 ? 1
                                     : 0,
                     units[unit]);
}

std::string human_seconds(double s) {
  if (s < 1) return fmt::format("{:.0f} ms", s * 1000);
  if (s < 60) return fmt::format("{:.1f} s", s);
  const auto whole = std::llround(s);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole % 3600 / 60);
}

}  // namespace zeropp::experiments
