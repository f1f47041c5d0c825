// JSON as a sequence of events, for texts that are too large or too many to become documents.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace baleen {

// Calls `handler` for each value, key and bracket until one of its functions returns false, which this then does too. Unlike parse_json
// it checks nothing but the grammar, and takes a NUL byte for the end of the text.
bool read_json_events(std::string_view text, nlohmann::json_sax<nlohmann::json>& handler);

}  // namespace baleen
