// Where the training part of a token file ends and the validation part begins.
#pragma once

#include <cstdint>

#include "data/token_file.h"

namespace baleen {

// The first token of validation, in [1, size - 1]. Validation shall have target = round(fraction · size) tokens, at least 1. The cut is the
// end of a document that comes nearest to this, provided validation then has between half and twice its target: whole documents at the end
// of the data. Otherwise (one text, say) it is exactly at the target, inside a document. Either way nothing is in both parts.
// Throws Error(bad_data) where there are fewer than 2 tokens.
std::uint64_t validation_start(const TokenFile& file, std::int32_t end_of_document, double fraction);

}  // namespace baleen
