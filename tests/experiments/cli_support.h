#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "experiments/json_io.h"
#include "tests/experiments/temp_dir.h"

namespace zeropp::experiments {

/// The program as a process, in a folder of its own.
class Cli : public testing::Test {
 protected:
  /// Runs `zeropp <args>` in the test's folder.
  int run(const std::string& args) {
    return shell(std::string("'") + ZEROPP_PROGRAM + "' " + args);
  }
  int shell(const std::string& command) {
    const std::string line =
        "cd '" + dir_.path().string() + "' && { " + command + "; } >stdout.txt 2>stderr.txt";
    const int status = std::system(line.c_str());  // NOLINT: a shell is what we test from.
    out_ = read_text(dir_.path() / "stdout.txt");
    err_ = read_text(dir_.path() / "stderr.txt");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  void expect_one_line(const std::string& words) {
    EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 1) << err_;
    EXPECT_THAT(err_, testing::StartsWith("zeropp: ["));
    EXPECT_THAT(err_, testing::HasSubstr(words));
    EXPECT_EQ(out_, "");
  }
  bool written() const { return std::filesystem::exists(dir_.path() / "out"); }

  TempDir dir_;
  std::string out_, err_;
};

}  // namespace zeropp::experiments
