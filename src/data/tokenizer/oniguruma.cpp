#include "data/tokenizer/oniguruma.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "data/tokenizer/utf8.h"

namespace baleen {
namespace {

// What \w and \h match, for use inside a class. PCRE2's \w lacks the marks and has numbers that are no digits.
constexpr std::string_view word = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
// Outside a class it also takes the numbers of Latin-1: ¹ ² ³ ¼ ½ ¾ (so do \b and \B).
constexpr std::string_view lone_word = R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\xb2\xb3\xb9\xbc-\xbe])",
                           no_word = R"([^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\xb2\xb3\xb9\xbc-\xbe])";
constexpr std::string_view hexadecimal = "0-9A-Fa-f";

// General categories by their long names, which PCRE2 does not know, as Oniguruma compares them: lower case, without spaces, "-" and "_".
constexpr std::pair<std::string_view, std::string_view> categories[]{
    {"letter", "L"},
    {"casedletter", "LC"},
    {"uppercaseletter", "Lu"},
    {"lowercaseletter", "Ll"},
    {"titlecaseletter", "Lt"},
    {"modifierletter", "Lm"},
    {"otherletter", "Lo"},
    {"mark", "M"},
    {"combiningmark", "M"},
    {"nonspacingmark", "Mn"},
    {"spacingmark", "Mc"},
    {"enclosingmark", "Me"},
    {"number", "N"},
    {"decimalnumber", "Nd"},
    {"digit", "Nd"},
    {"letternumber", "Nl"},
    {"othernumber", "No"},
    {"punctuation", "P"},
    {"connectorpunctuation", "Pc"},
    {"dashpunctuation", "Pd"},
    {"openpunctuation", "Ps"},
    {"closepunctuation", "Pe"},
    {"initialpunctuation", "Pi"},
    {"finalpunctuation", "Pf"},
    {"otherpunctuation", "Po"},
    {"symbol", "S"},
    {"mathsymbol", "Sm"},
    {"currencysymbol", "Sc"},
    {"modifiersymbol", "Sk"},
    {"othersymbol", "So"},
    {"separator", "Z"},
    {"spaceseparator", "Zs"},
    {"lineseparator", "Zl"},
    {"paragraphseparator", "Zp"},
    {"other", "C"},
    {"control", "Cc"},
    {"cntrl", "Cc"},
    {"format", "Cf"},
    {"privateuse", "Co"},
    {"surrogate", "Cs"},
    {"unassigned", "Cn"},
};

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_hexadecimal(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

bool pcre2_reads(const std::string& expression) {
  int error = 0;
  PCRE2_SIZE at = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(), PCRE2_UTF, &error, &at, nullptr);
  const bool read = code != nullptr;
  pcre2_code_free(code);
  return read;
}

class Translator {
 public:
  Translator(std::string_view expression, const std::string& where) : in_(expression), where_(where) {}

  std::string translate() {
    while (at_ < in_.size()) step();
    return std::move(out_);
  }

 private:
  static constexpr std::size_t none = std::string::npos;
  struct Options {
    bool extended = false;     // (?x): white space and comments are skipped
    bool ignore_case = false;  // (?i)
  };
  struct Group {
    std::size_t begin = 0;  // in out_
    Options options;        // outside of it
  };

  [[noreturn]] void refuse(std::string_view construct) const {
    throw Error(ExitCode::bad_data,
                "an expression with \"" + printable(construct) + "\", which PCRE2 does not read as Hugging Face's library does", where_,
                other_tokenizer_files);
  }
  char peek(std::size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }
  bool next_is(std::string_view text) const { return in_.substr(at_).starts_with(text); }
  void emit(std::string_view text, std::size_t read) {
    out_ += text;
    at_ += read;
  }
  void copy(std::size_t length) { emit(in_.substr(at_, length), std::min(length, in_.size() - at_)); }
  // Copies up to and with `last`; all of the rest where it is missing, for PCRE2 to complain about.
  void copy_to(char last) {
    const std::size_t found = in_.find(last, at_);
    copy(found == none ? in_.size() - at_ : found + 1 - at_);
  }

  void begin_atom() {
    atom_ = out_.size();
    quantified_ = branch_begins_ = false;
  }

  void step() {
    const char c = peek();
    if (options_.extended && (c == ' ' || (c >= '\t' && c <= '\r'))) return copy(1);
    if (options_.extended && c == '#') return copy_to('\n');
    if (c == '(') return open();
    if (c == '*' || c == '+' || c == '?' || (c == '{' && interval() > 0)) return quantifier();
    if (c == '|') {
      copy(1);
      atom_ = none;
      quantified_ = false;
      branch_begins_ = true;
      return;
    }
    if (c == ')') {
      copy(1);
      const Group group = groups_.empty() ? Group{none, {}} : groups_.back();
      if (!groups_.empty()) groups_.pop_back();
      atom_ = group.begin;
      options_ = group.options;
      quantified_ = branch_begins_ = false;
      return;
    }
    begin_atom();
    if (c == '\\') return escape();
    if (c == '[') return character_class();
    if (c == '^') return emit("(?m:^)", 1);  // of every line, as in Ruby
    if (c == '$') return emit("(?m:$)", 1);
    if (c == '{') return emit("\\{", 1);  // no interval: itself
    copy(std::max<std::size_t>(1, utf8_character(in_.substr(at_))));
  }

  void push(std::size_t begin, Options options) {
    groups_.push_back({begin, std::exchange(options_, options)});
    atom_ = none;
    quantified_ = false;
    branch_begins_ = true;
  }

  void open() {
    if (next_is("(*")) refuse("(*");
    if (next_is("(?#")) {
      for (at_ += 3; at_ < in_.size() && peek() != ')'; ++at_)
        if (peek() == '\\') ++at_;
      at_ = std::min(at_ + 1, in_.size());
      return;
    }
    const std::size_t begin = out_.size();
    if (!next_is("(?")) {
      copy(1);
      return push(begin, options_);
    }
    for (const std::string_view kind : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"})
      if (next_is(kind)) {
        copy(kind.size());
        return push(begin, options_);
      }
    if (next_is("(?<")) {
      copy_to('>');
      return push(begin, options_);
    }
    read_options(begin);
  }

  // (?i), (?mx-i:…). Ruby's m lets . match line ends, which is PCRE2's s.
  void read_options(std::size_t begin) {
    std::string written = "(?";
    std::size_t length = 2;
    bool on = true;
    Options options = options_;
    for (; peek(length) != ')' && peek(length) != ':'; ++length) {
      const char option = peek(length);
      if (option == '-')
        on = false;
      else if (option == 'x')
        options.extended = on;
      else if (option == 'i')
        options.ignore_case = on;
      else if (option != 'm')
        refuse(in_.substr(at_, length + 1));
      written += option == 'm' ? 's' : option;
    }
    const bool group = peek(length) == ':';
    // Ruby's (?i) in the midst of a branch holds together what follows, further branches with it; PCRE2's does not.
    if (!group && !branch_begins_) refuse(in_.substr(at_, length + 1));
    emit(written + peek(length), length + 1);
    if (group) return push(begin, options);
    options_ = options;
  }

  // Bytes of the interval {n}, {n,}, {n,m} or {,m} that begins here, or 0.
  std::size_t interval() const {
    std::size_t length = 1;
    const auto digits = [&] {
      const std::size_t first = length;
      while (is_digit(peek(length))) ++length;
      return length > first;
    };
    const bool low = digits(), comma = peek(length) == ',';
    if (comma) ++length;
    const bool high = comma && digits();
    return peek(length) == '}' && (low || high) ? length + 1 : 0;
  }

  void quantifier() {
    // Another one repeats the repetition: {1,3}+ is possessive in PCRE2 and in Ruby is not, and ++ behind + + is an error.
    if (quantified_ && atom_ != none) {
      out_.insert(atom_, "(?:");
      out_ += ')';
    }
    const std::size_t length = peek() == '{' ? interval() : 1;
    const std::string_view text = in_.substr(at_, length);
    const bool exact = length > 1 && text.find(',') == none;
    if (text.starts_with("{,"))
      emit("{0" + std::string(text.substr(1)), length);
    else
      copy(length);
    if ((peek() == '?' && !exact) || (peek() == '+' && length == 1)) copy(1);  // {n}? means (?:…{n})?
    quantified_ = true;
  }

  void escape() {
    switch (const char kind = peek(1)) {
      case 'w': return emit(lone_word, 2);
      case 'W': return emit(no_word, 2);
      case 'h': return emit("[" + std::string(hexadecimal) + "]", 2);
      case 'H': return emit("[^" + std::string(hexadecimal) + "]", 2);
      case 'b':
      case 'B': {  // whether words begin or end here, with Oniguruma's \w
        const std::string w(lone_word), same = kind == 'B' ? "=" : "!", other = kind == 'B' ? "!" : "=";
        return emit("(?:(?<=" + w + ")(?" + same + w + ")|(?<!" + w + ")(?" + other + w + "))", 2);
      }
      case 'A':
      case 'z':
      case 'Z': return copy(2);
      case 'k':
      case 'g': return peek(2) == '<' ? copy_to('>') : refuse(in_.substr(at_, 2));
      default: return shared_escape();
    }
  }

  // What means the same inside a class and outside.
  void shared_escape() {
    const char kind = peek(1);
    switch (kind) {
      case 's': return emit("\\p{WSpace}", 2);
      case 'S': return emit("\\P{WSpace}", 2);
      case 'v': return emit("\\x0b", 2);
      case 'p':
      case 'P': return property();
      case 'x': {
        if (peek(2) == '{') return copy_to('}');
        if (!is_hexadecimal(peek(2)) || (peek(2) >= '8' && is_hexadecimal(peek(3)))) refuse(in_.substr(at_, 4));  // a byte, no character
        return copy(is_hexadecimal(peek(3)) ? 4 : 3);
      }
      case 'u': {
        for (std::size_t i = 2; i < 6; ++i)
          if (!is_hexadecimal(peek(i))) refuse(in_.substr(at_, 2));
        return emit("\\x{" + std::string(in_.substr(at_ + 2, 4)) + "}", 6);
      }
      case 'o': return peek(2) == '{' ? copy_to('}') : refuse(in_.substr(at_, 2));
      case 'c': return copy(3);
      case 'd':
      case 'D':
      case 't':
      case 'n':
      case 'r':
      case 'f':
      case 'a':
      case 'e': return copy(2);
      default: break;
    }
    if (is_letter(kind)) refuse(in_.substr(at_, 2));
    std::size_t length = 1 + std::max<std::size_t>(1, utf8_character(in_.substr(std::min(at_ + 1, in_.size()))));
    while (is_digit(kind) && is_digit(peek(length))) ++length;
    copy(length);
  }

  void property() {
    const std::size_t end = in_.find('}', at_);
    if (peek(2) != '{' || end == none) refuse(in_.substr(at_, 2));
    const std::string_view whole = in_.substr(at_, end + 1 - at_);
    std::string name;
    for (const char c : whole.substr(3, whole.size() - 4))
      if (c != ' ' && c != '-' && c != '_') name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    bool negative = peek(1) == 'P';
    if (name.starts_with('^')) {
      negative = !negative;
      name.erase(0, 1);
    }
    const auto* const category =
        std::ranges::find(categories, std::string_view(name), &std::pair<std::string_view, std::string_view>::first);
    if (category != std::end(categories)) name = category->second;
    // A script is the characters that have it as their Script, not all that have it among their Script_Extensions.
    else if (pcre2_reads("\\p{sc:" + name + "}"))
      name = "sc:" + name;
    else if (!pcre2_reads("\\p{" + name + "}"))
      refuse(whole);
    emit((negative ? "\\P{" : "\\p{") + name + "}", whole.size());
  }

  // A class in a class is a part of it, whose brackets are left out here.
  void character_class() {
    const std::size_t begin = at_;
    const auto refuse_up_to = [&](std::size_t ahead) { refuse(in_.substr(begin, at_ + ahead - begin)); };
    copy(peek(1) == '^' ? 2 : 1);
    if (peek() == ']') emit("\\]", 1);
    for (int depth = 0; at_ < in_.size() && (peek() != ']' || depth > 0);) {
      if (next_is("[:")) {
        const std::size_t end = in_.find(":]", at_);
        refuse(end == none ? "[:" : in_.substr(at_, end + 2 - at_));
      }
      if (next_is("&&")) refuse("&&");
      if (peek() == '[') {
        if (out_.back() == '-' || peek(1) == '^' || peek(1) == ']' || peek(1) == '-') refuse_up_to(2);  // would be another range or class
        ++depth;
        ++at_;
      } else if (peek() == ']') {
        if (out_.back() == '-' || peek(1) == '-') refuse_up_to(2);
        --depth;
        ++at_;
      } else if (peek() != '\\') {
        copy(std::max<std::size_t>(1, utf8_character(in_.substr(at_))));
      } else if (peek(1) == 'w') {
        emit(word, 2);
      } else if (peek(1) == 'h') {
        emit(hexadecimal, 2);
      } else if (peek(1) == 'b') {
        emit("\\x08", 2);
      } else {
        // Oniguruma takes what folds to a member of the class, PCRE2 what is in the property.
        if (options_.ignore_case && (peek(1) == 'p' || peek(1) == 'P'))
          refuse("(?i) and " + std::string(in_.substr(begin, at_ + 2 - begin)));
        shared_escape();
      }
    }
    copy(1);
  }

  const std::string_view in_;
  const std::string& where_;
  std::size_t at_ = 0;  // in in_
  std::string out_;
  std::vector<Group> groups_;
  std::size_t atom_ = none;    // where in out_ begins what a quantifier here repeats
  bool quantified_ = false;    // whether it has one already
  bool branch_begins_ = true;  // nothing of the branch has come yet
  Options options_;
};

}  // namespace

std::string pcre2_from_oniguruma(std::string_view expression, const std::string& where) {
  return Translator(expression, where).translate();
}

}  // namespace baleen
