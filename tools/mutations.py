"""Makes mutants from lines of C++: on each line the mistakes that a tired engineer could make there.

The code is read line by line, without a parser. It relies on the form that clang-format gives to the code: binary
operators have spaces, those of templates do not. A mutant that does not compile does no harm.
"""

import re
import subprocess

# A code of a status, and the one that takes its place.
OTHER_CODE = {"InvalidArgument": "FailedPrecondition", "Unavailable": "DeadlineExceeded", "NotFound": "Unavailable"}
ANY_OTHER_CODE = "Internal"
# Tokens that take each other's place.
SWAPS = [
    (r" <= ", " < ", "a bound is excluded"),
    (r" < ", " <= ", "a bound is included"),
    (r" >= ", " > ", "a bound is excluded"),
    (r" > ", " >= ", "a bound is included"),
    (r" == ", " != ", "a comparison is the other way round"),
    (r" != ", " == ", "a comparison is the other way round"),
    (r" [+-] 1\b(?![.'])", "", "one less or one more"),
    (r"\breturn true;", "return false;", "the answer is the other way round"),
    (r"\breturn false;", "return true;", "the answer is the other way round"),
]
NOTIFICATION = re.compile(r"(notify_one|notify_all|wake\w*|signal\w*)\(.*\);$")
COUNTER = re.compile(r"((\+\+|--)[\w.\[\]>()-]+;|[\w.\[\]>()-]+ [+-]= .+;|.+[.>](fetch_(add|sub)|increment|add)\(.*\);)$")
ASSIGNMENT = re.compile(r"[\w.\[\]>()*-]+ = .+;$")
# A check before the work.
CHECK = re.compile(r"if \(.*\) (return\b.*|continue|break);$")
# A call whose result is not used. A declaration has a space before the parenthesis.
CALL = re.compile(r"(\(void\))?[\w.:\[\]>()*-]+\(.*\);$")
# Lines that declare, annotate or print.
IGNORED = re.compile(r"^\s*(#|template\b|using\b|static_assert|friend\b|typedef\b|case\b.*:$|//)"
                     r"|\bABSL_|\boperator\b|= (default|delete|0);")
# Files that are not part of the product.
OUTSIDE = re.compile(r"(^|/)(tests|testing|examples|bench|fuzz|conformance)/|_test\.(cc|h)$|_cases\.cc$|conformance|fixture")


def hide_texts(line):
    """The line with a blank for each character of comments and literals."""
    def blank(match):
        return " " if match[0].startswith("//") else match[0][0] + "_" * (len(match[0]) - 2) + match[0][-1]

    hidden = re.sub(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'', blank, line)
    return hidden[:hidden.index("//")] if "//" in hidden else hidden


def matching(text, start):
    """The index of the parenthesis that closes the one at `start`; None if it is on another line."""
    depth = 0
    for index in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if depth == 0:
            return index
    return None


def condition_of(hidden):
    """The first and the last index of the condition of an `if`, if it is an expression and ends on this line."""
    found = re.search(r"\bif \(", hidden)
    end = matching(hidden, found.end() - 1) if found else None
    if end is None:
        return None
    begin = hidden.rfind("; ", found.end(), end)
    begin = found.end() if begin < 0 else begin + 2
    # A declaration, which the body uses.
    if re.match(r"(const )?[\w:<>]+[ *&]+\w+ = ", hidden[begin:end]):
        return None
    return begin, end


def left_out_conditions(line, hidden):
    """The line without one operand of "and" or "or"."""
    for found in re.finditer(r" (&&|\|\|) ", hidden):
        end, depth = found.end(), 0
        while end < len(hidden) and (depth > 0 or not re.match(r"[);,?]| (&&|\|\|) | \? | \{$", hidden[end:])):
            depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(hidden[end], 0)
            end += 1
        if end < len(hidden):
            yield line[:found.start()] + line[end:]
        # The operand before it, if it begins on this line and is the first one.
        begin, depth = found.start(), 0
        while begin > 0 and (depth > 0 or not re.search(r"(\(|\breturn |(?<![=!<>])= |, | && | \|\| )$", hidden[:begin])):
            depth += {")": 1, "]": 1, "(": -1, "[": -1}.get(hidden[begin - 1], 0)
            begin -= 1
        if begin > 0 and not hidden[:begin].endswith(("&& ", "|| ")):
            yield line[:begin] + line[found.end():]


def left_out_limits(line, hidden):
    """The line with one of the two values of std::min or std::max alone."""
    for found in re.finditer(r"\bstd::(min|max)(<[\w:]+>)?\(", hidden):
        end = matching(hidden, found.end() - 1)
        if end is None:
            continue
        inner = hidden[found.end():end]
        commas = [index for index, letter in enumerate(inner) if letter == ","
                  and all(inner[:index].count(a) == inner[:index].count(b) for a, b in ("()", "{}", "[]"))]
        if len(commas) == 1:
            comma = found.end() + commas[0]
            yield line[:found.start()] + line[found.end():comma] + line[end + 1:]
            yield line[:found.start()] + line[comma + 2:end] + line[end + 1:]


def begins_statement(before):
    """Whether a statement begins after the line `before`, the last one with code."""
    return before is None or bool(re.search(r"[;{}:]$|\b(if|for|while) .*\)$|\belse$", before.rstrip()))


def mutants_of_line(line, before):
    """Pairs (changed line, what is wrong in it)."""
    hidden = hide_texts(line)
    if IGNORED.search(hidden) or not hidden.strip():
        return
    statement = hidden.strip()
    whole = (statement.endswith(";") and statement.count("(") == statement.count(")") and begins_statement(before))
    left_out = line[:len(line) - len(line.lstrip())] + "{}"
    condition = condition_of(hidden)
    if whole and CHECK.match(statement):
        yield left_out, "a check is left out"
    elif condition:
        begin, end = condition
        yield f"{line[:begin]}true{line[end:]}", "a condition is left out"
        yield (left_out, "a step is left out") if whole else (f"{line[:begin]}false{line[end:]}", "a case is left out")
    alone = condition and not re.search(r"&&|\|\|", hidden)
    for pattern, other, what in SWAPS:
        # The condition as a whole is replaced above, or its check left out.
        if alone and re.search("[=!]=", pattern):
            continue
        for found in re.finditer(pattern, hidden):
            yield line[:found.start()] + other + line[found.end():], what
    for changed in left_out_conditions(line, hidden):
        yield changed, "a condition is left out"
    for changed in left_out_limits(line, hidden):
        yield changed, "a limit is left out"
    for found in re.finditer(r"\babsl::(\w+)Error\(", hidden):
        other = OTHER_CODE.get(found[1], ANY_OTHER_CODE)
        if other != found[1]:
            yield line[:found.start(1)] + other + line[found.end(1):], "an error has another code"
    for found in re.finditer(r"\bStatusCode::k(\w+)", hidden):
        other = OTHER_CODE.get(found[1], ANY_OTHER_CODE)
        if other != found[1] and found[1] != "Ok":
            yield line[:found.start(1)] + other + line[found.end(1):], "an error has another code"
    if not whole:
        return
    if NOTIFICATION.search(statement):
        yield left_out, "a notification is left out"
    elif COUNTER.match(statement):
        yield left_out, "a count is left out"
    elif ASSIGNMENT.match(statement):
        yield left_out, "an assignment is left out"
    elif CALL.match(statement):
        yield left_out, "a step is left out"


def mutants_of(path, text, lines=None):
    """The mutants of a file, or of these lines of it (from 1 on)."""
    found = []
    before = None
    for number, line in enumerate(text.splitlines(), 1):
        if lines is None or number in lines:
            for letter, (changed, what) in zip("abcdefghijklmnopqrstuvwxyz", mutants_of_line(line, before)):
                found.append({"id": f"{path}:{number}{letter}", "file": path, "line": number, "old": line, "new": changed,
                              "what": what})
        if hide_texts(line).strip():
            before = hide_texts(line)
    return found


def is_product(path):
    return path.endswith((".cc", ".h")) and not OUTSIDE.search(path)


def changed_lines(root, base):
    """The numbers of the lines, by file of the product, that are new or changed since the commit. Lines that moved with
    their file are not."""
    command = ["git", "diff", "--unified=0", "--find-renames=40%", "--ignore-all-space", "--no-color", base, "HEAD", "--"]
    diff = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, errors="replace", check=True).stdout
    changed = {}
    path = None
    for line in diff.splitlines():
        if line.startswith("+++ "):
            path = line[6:] if line.startswith("+++ b/") and is_product(line[6:]) else None
        hunk = re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line)
        if hunk and path:
            first, count = int(hunk[1]), int(hunk[2] or 1)
            changed.setdefault(path, set()).update(range(first, first + count))
    return changed
