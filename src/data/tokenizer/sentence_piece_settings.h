// What a SentencePiece model says of itself beside its pieces, as far as cutting texts depends on it.
#pragma once

#include <string_view>

namespace baleen {

// Fields of trainer_spec and normalizer_spec (sentencepiece_model.proto), with the defaults that hold where a model does not say.
struct SentencePieceSettings {
  bool byte_pairs = false;           // model_type = BPE; the default is UNIGRAM
  bool space_is_suffix = false;      // treat_whitespace_as_suffix
  bool rewrites_characters = false;  // precompiled_charsmap
  bool removes_extra_spaces = true;  // remove_extra_whitespaces
  bool escapes_spaces = true;        // escape_whitespaces
};

// Reads them from a model's file, which is a protobuf message (wire format: protobuf.dev/programming-guides/encoding). What is malformed
// reads as the defaults: the library refuses it.
SentencePieceSettings read_sentence_piece_settings(std::string_view model);

}  // namespace baleen
