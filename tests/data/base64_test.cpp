#include "data/tokenizer/base64.h"

#include <gtest/gtest.h>

namespace baleen {
namespace {

// RFC 4648 section 10.
TEST(Base64, AgreesWithTheVectorsOfTheRfc) {
  const std::pair<std::string, std::string> vectors[]{
      {"", ""}, {"f", "Zg=="}, {"fo", "Zm8="}, {"foo", "Zm9v"}, {"foob", "Zm9vYg=="}, {"fooba", "Zm9vYmE="}, {"foobar", "Zm9vYmFy"}};
  for (const auto& [bytes, text] : vectors) {
    EXPECT_EQ(encode_base64(bytes), text);
    EXPECT_EQ(decode_base64(text), bytes);
  }
}

TEST(Base64, CarriesEveryByte) {
  for (std::size_t length = 0; length < 9; ++length)
    for (int value = 0; value < 256; ++value) {
      const std::string bytes(length, static_cast<char>(value));
      ASSERT_EQ(decode_base64(encode_base64(bytes)), bytes);
    }
}

TEST(Base64, RefusesWhatNoEncoderWrites) {
  for (const char* text : {"A", "AA", "AAA", "A===", "====", "=AAA", "AA=A", "AAAA=", "AA A", "AA\nA", "AA-_", "AB==", "AAB=", "Zg==Zg=="})
    EXPECT_FALSE(decode_base64(text)) << text;
}

}  // namespace
}  // namespace baleen
