#include "data/tokenizer/rank_tokenizer.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "data/tokenizer/rank_file.h"

namespace baleen {
namespace {

struct PublishedVocabulary {
  std::int32_t ranks;
  const char* name;
};
// Those with rank files of their own in the format and another expression (github.com/openai/tiktoken, github.com/meta-llama/llama3).
constexpr PublishedVocabulary other_expressions[]{{100256, "cl100k_base"}, {199998, "o200k_base"}, {128000, "Llama 3"}};

}  // namespace

RankTokenizer::RankTokenizer(TokenTable tokens, const std::string& where)
    : pretokenizer_(Pretokenizer::gpt2()), encoder_(std::move(tokens)) {
  for (const auto& [ranks, name] : other_expressions)
    if (encoder_.tokens().size() == ranks)
      throw Error(ExitCode::bad_data,
                  std::string("the ranks are those of ") + name + ", which cuts text by another expression than GPT-2's", where,
                  "use GPT-2's ranks or `bytes`");
}

void RankTokenizer::encode(std::string_view text, std::vector<std::int32_t>& ids) const {
  std::vector<std::size_t> ends;
  ends.reserve(text.size() / 3);
  pretokenizer_->split(text, ends);
  BytePairEncoder::Scratch scratch;
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    encoder_.encode(text.substr(begin, end - begin), scratch, ids);
    begin = end;
  }
}

std::string RankTokenizer::to_json() const {
  return dump_json(nlohmann::json{{"kind", kind()}, {"pattern", "gpt2"}, {"ranks", write_rank_file(encoder_.tokens())}});
}

}  // namespace baleen
