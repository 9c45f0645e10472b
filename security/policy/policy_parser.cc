#include "gradwire/security/policy/policy_parser.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/security/policy/policy.h"

// A line is cut into tokens first, then read from the left to the right. The first mistake ends the parsing.
namespace gradwire::security {
namespace {

// At most so many bytes of a wrong token are shown.
constexpr std::size_t kShown = 64;

constexpr absl::string_view kKinds = "function, class, operator, script, reference, service or everything";

struct Token {
  enum class Kind { kWord, kQuoted, kComma };
  Kind kind = Kind::kWord;
  std::string text;
  std::size_t column = 0;
};

std::string shown(absl::string_view text) {
  return absl::StrCat("\"", absl::CHexEscape(text.substr(0, kShown)), text.size() > kShown ? "..." : "",
                      "\"");
}

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
bool ends_word(char c) { return is_blank(c) || c == ',' || c == '#' || c == '"'; }
bool is_control(char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)) && !is_blank(c); }

bool is_worker_name(absl::string_view pattern) {
  return std::all_of(pattern.begin(), pattern.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("_.:-*", c);
  });
}

std::optional<CalleeClass> kind_of(absl::string_view word) {
  for (std::size_t i = 0; i < kCalleeClasses; ++i) {
    if (word_for(static_cast<CalleeClass>(i)) == word) return static_cast<CalleeClass>(i);
  }
  return std::nullopt;
}

class LineParser {
 public:
  LineParser(absl::string_view source, int line, absl::string_view text)
      : source_(source), line_(line), text_(text) {}

  absl::Status parse(Rules& rules) {
    if (absl::Status status = split(); !status.ok()) return status;
    if (tokens_.empty()) return absl::OkStatus();
    const Token& first = tokens_.front();
    next_ = 1;
    if (is_word(first, "default")) return parse_default(rules);
    if (is_word(first, "allow") || is_word(first, "deny")) return parse_rule(rules);
    return error(first.column, absl::StrCat("unknown word ", shown(first.text),
                                            ": begin the line with allow, deny, default or #"));
  }

 private:
  static bool is_word(const Token& token, absl::string_view word) {
    return token.kind == Token::Kind::kWord && token.text == word;
  }

  absl::Status error(std::size_t column, absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(source_, ":", line_, ":", column, ": ", what));
  }
  std::size_t end_column() const { return text_.size() + 1; }
  const Token* peek() const { return next_ < tokens_.size() ? &tokens_[next_] : nullptr; }
  std::size_t column() const { return peek() == nullptr ? end_column() : peek()->column; }

  absl::Status split() {
    for (std::size_t at = 0; at < text_.size();) {
      const char c = text_[at];
      if (is_control(c)) return control_character(at);
      if (is_blank(c)) {
        ++at;
      } else if (c == '#') {
        break;
      } else if (c == ',') {
        tokens_.push_back({Token::Kind::kComma, ",", ++at});
      } else if (c == '"') {
        if (absl::Status status = split_quoted(at); !status.ok()) return status;
      } else {
        const std::size_t begin = at;
        while (at < text_.size() && !ends_word(text_[at]) && !is_control(text_[at])) ++at;
        tokens_.push_back({Token::Kind::kWord, std::string(text_.substr(begin, at - begin)), begin + 1});
      }
    }
    return absl::OkStatus();
  }

  absl::Status split_quoted(std::size_t& at) {
    Token token{Token::Kind::kQuoted, "", at + 1};
    for (++at; at < text_.size() && text_[at] != '"'; ++at) {
      if (is_control(text_[at])) return control_character(at);
      if (text_[at] == '\\') {
        ++at;
        if (at == text_.size() || (text_[at] != '"' && text_[at] != '\\'))
          return error(at, "unknown escape: inside quotes write \\\" for a quote and \\\\ for a backslash");
      }
      token.text.push_back(text_[at]);
    }
    if (at == text_.size())
      return error(token.column, "the quote does not end in this line: add \" behind the name");
    ++at;
    tokens_.push_back(std::move(token));
    return absl::OkStatus();
  }

  absl::Status control_character(std::size_t at) const {
    return error(at + 1, absl::StrCat("control character ", shown(text_.substr(at, 1)),
                                      ": write the file as plain text"));
  }

  absl::Status parse_default(Rules& rules) {
    if (rules.default_line != 0) {
      return error(tokens_.front().column, absl::StrCat("a second default: line ", rules.default_line,
                                                        " has one already; remove one of them"));
    }
    const Token* const value = peek();
    if (value == nullptr || (!is_word(*value, "allow") && !is_word(*value, "deny")))
      return error(column(), "expected \"default allow\" or \"default deny\"");
    rules.allows_by_default = value->text == "allow";
    rules.default_line = line_;
    ++next_;
    return expect_end();
  }

  absl::Status parse_rule(Rules& rules) {
    if (rules.rules.size() == kMaxRules) {
      return error(1, absl::StrCat("more than ", kMaxRules,
                                   " rules: use patterns with *, or lists with commas, to write fewer"));
    }
    Rule rule;
    rule.line = line_;
    rule.allows = tokens_.front().text == "allow";
    auto check_caller = [this](const Token& token) -> absl::Status {
      if (is_worker_name(token.text)) return absl::OkStatus();
      return error(token.column, absl::StrCat(shown(token.text),
                                              " fits no worker: names of workers have only the characters "
                                              "A-Z a-z 0-9 _ . : -, and * stands for any of them"));
    };
    absl::Status status = parse_list("the callers", rule.callers, check_caller);
    if (!status.ok()) return status;
    const Token* const word = peek();
    if (word == nullptr) return error(column(), absl::StrCat("the kind is missing: write ", kKinds));
    ++next_;
    rule.everything = is_word(*word, "everything");
    if (!rule.everything) {
      const std::optional<CalleeClass> kind =
          word->kind == Token::Kind::kWord ? kind_of(word->text) : std::nullopt;
      if (!kind) {
        return error(word->column, absl::StrCat("unknown kind ", shown(word->text), ": write ", kKinds,
                                                ", and a comma between several callers"));
      }
      rule.kind = *kind;
      auto check = [this, kind = *kind](const Token& token) { return check_name(kind, token); };
      status = parse_list(absl::StrCat("a name behind ", word_for(*kind)), rule.names, check);
      if (!status.ok()) return status;
    }
    status = expect_end();
    if (status.ok()) rules.rules.push_back(std::move(rule));
    return status;
  }

  template <class Check>
  absl::Status parse_list(absl::string_view what, std::vector<std::string>& list, const Check& check) {
    while (true) {
      const Token* const token = peek();
      if (token == nullptr || token->kind == Token::Kind::kComma) {
        return error(column(), absl::StrCat(list.empty() ? absl::StrCat("expected ", what)
                                                         : "nothing follows the comma",
                                            ": write a name or a pattern with *"));
      }
      if (token->text.empty()) return error(token->column, "an empty name fits nothing: write a name, or *");
      if (token->text.size() > kMaxRuleName) {
        return error(token->column, absl::StrCat("a name of ", token->text.size(), " bytes: at most ",
                                                 kMaxRuleName, " are allowed; use a pattern with *"));
      }
      if (absl::Status status = check(*token); !status.ok()) return status;
      list.push_back(token->text);
      ++next_;
      if (peek() == nullptr || peek()->kind != Token::Kind::kComma) return absl::OkStatus();
      ++next_;
    }
  }

  // A rule that can never fit is a mistake. Where the names are known, it is found here.
  absl::Status check_name(CalleeClass kind, const Token& token) const {
    if (kind == CalleeClass::kOperator && absl::StrContains(token.text, '.')) {
      return error(token.column, absl::StrCat(shown(token.text),
                                              " names an overload: write the operator without it, as in "
                                              "aten::add; a rule holds for all overloads"));
    }
    if (kind == CalleeClass::kReference) return check_known(kReferenceActions, kind, token);
    if (kind == CalleeClass::kService) return check_known(kServices, kind, token);
    return absl::OkStatus();
  }

  template <class Names>
  absl::Status check_known(const Names& names, CalleeClass kind, const Token& token) const {
    for (absl::string_view name : names) {
      if (matches(token.text, name)) return absl::OkStatus();
    }
    return error(token.column, absl::StrCat("unknown ", word_for(kind), " ", shown(token.text), ": write ",
                                            absl::StrJoin(names, ", "), " or *",
                                            kind == CalleeClass::kReference
                                                ? " (a worker may always give back what it holds)"
                                                : ""));
  }

  absl::Status expect_end() const {
    const Token* const token = peek();
    if (token == nullptr) return absl::OkStatus();
    return error(token->column, absl::StrCat(shown(token->text),
                                             " is too much: end the line here, put a comma between names, "
                                             "and names with blanks or commas into quotes"));
  }

  const absl::string_view source_;
  const int line_;
  const absl::string_view text_;
  std::vector<Token> tokens_;
  std::size_t next_ = 0;
};

}  // namespace

absl::StatusOr<Rules> parse_policy(absl::string_view text, absl::string_view source) {
  if (text.size() > kMaxPolicyBytes) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": the policy has ", text.size(),
                                                   " bytes: at most ", kMaxPolicyBytes,
                                                   " are allowed; use patterns with * to shorten it"));
  }
  Rules rules;
  for (int line = 1; !text.empty(); ++line) {
    const absl::string_view one = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), one.size() + 1));
    if (absl::Status status = LineParser(source, line, one).parse(rules); !status.ok()) return status;
  }
  return rules;
}

std::string quoted_if_needed(absl::string_view name) {
  if (!name.empty() && std::none_of(name.begin(), name.end(), ends_word)) return std::string(name);
  std::string quoted = "\"";
  for (char c : name) {
    if (c == '"' || c == '\\') quoted.push_back('\\');
    quoted.push_back(c);
  }
  return quoted + "\"";
}

}  // namespace gradwire::security
