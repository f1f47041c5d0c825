// Where things outside a test are. Only paths.cpp knows the folders of this tree, so that a test's object file is the same in every tree.
#pragma once

#include <filesystem>
#include <string>

namespace baleen::testing {

// tests/golden/NAME.
std::filesystem::path golden_file(const std::string& name);
// The program under test.
std::filesystem::path baleen_binary();
// A path from the root of the source tree.
std::filesystem::path source_path(const std::string& name);

// data/NAME of the project's shared folder (BALEEN_SHARED, or ../shared), or empty when it is not there.
std::filesystem::path shared_data(const std::string& name);

}  // namespace baleen::testing
