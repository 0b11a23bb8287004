// Functions that are called with a value: how their arguments are read, and the methods of strings
// and mappings as Python has them.
"use strict";

(function (hotset) {
  const { TemplateError, isString, isArray, isMapping, str, bool, list, items, typeName, bare } = hotset;

  // What str.isspace() says of a character.
  const kSpace = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
  const kLineEnd = /\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]/g;
  const kWord = new RegExp(`[^${kSpace}]+`, "g");
  const kIsSpace = new RegExp(`^[${kSpace}]$`);

  // Functions by their names. A key is a name and, behind spaces, those of the parameters.
  const table = (functions) => new Map(Object.entries(functions).map(([signature, call]) => {
    const [name, ...parameters] = signature.split(" ");
    return [name, { name, parameters, call }];
  }));

  // Calls a function of a table with `v` and what belongs to its parameters; undefined stands for
  // what is not given. An argument that nobody would read is an error: without it the text would be
  // another one.
  function invoke({ name, parameters, call }, v, args, kwargs) {
    const unknown = Array.from(kwargs.keys()).find((key) => !parameters.includes(key));
    if (unknown !== undefined) throw new TemplateError(`${name}: found the argument '${unknown}', which is not supported`);
    if (args.length > parameters.length) {
      throw new TemplateError(`${name}: found ${args.length} arguments, expected at most ${parameters.length}`);
    }
    return call(v, ...parameters.map((parameter, i) => args[i] ?? kwargs.get(parameter)));
  }

  // Arguments of a call, the Map of named ones taken off.
  const separate = (given) =>
    given.at(-1) instanceof hotset.KeywordArgumentsValue ? [given.slice(0, -1), given.at(-1).value] : [given, new Map()];

  const isMissing = (v) => v === undefined || v instanceof hotset.NullValue;

  function textArgument(v, what) {
    if (v === undefined) throw new TemplateError(`${what}: an argument is missing`);
    if (!isString(v)) throw new TemplateError(`${what}: found ${typeName(v)}, expected a str`);
    return v.value;
  }

  // `missing`: in place of nothing or None, if those are allowed.
  function numberArgument(v, missing, what) {
    if (isMissing(v) && missing !== undefined) return missing;
    if (!hotset.isNumber(v)) throw new TemplateError(`${what}: found ${typeName(v)}, expected a number`);
    const number = hotset.toNumber(v);
    if (typeof number === "bigint") throw new TemplateError(`${what}: found ${number}, which is too large to compute with`);
    return number;
  }

  // How often at most; a negative number is no limit.
  function countArgument(v, what) {
    const most = numberArgument(v, -1, what);
    return most < 0 ? Infinity : most;
  }

  function separator(v, what) {
    const sep = textArgument(v, what);
    if (sep === "") throw new TemplateError(`${what}: found an empty text, expected one to look for`);
    return sep;
  }

  function strip(value, chars, atStart, atEnd) {
    const set = isMissing(chars) ? null : new Set(bare(textArgument(chars, "strip")));
    const gone = (c) => (set === null ? kIsSpace.test(c) : set.has(c));
    const isMark = (at) => value[at] === hotset.mark;
    let begin = 0;
    let end = value.length;
    while (atStart && begin < end) {
      const c = String.fromCodePoint(value.codePointAt(begin));
      if (!gone(c)) break;
      begin += c.length;
      while (begin < end && isMark(begin)) ++begin;
    }
    while (atEnd && end > begin) {
      let at = end - 1;
      while (at > begin && isMark(at)) --at;
      const isPair = at > begin && /^[\udc00-\udfff]$/.test(value[at]);
      if (isPair) --at;
      if (!gone(String.fromCodePoint(value.codePointAt(at)))) break;
      end = at;
    }
    return value.slice(begin, end);
  }

  // At white space, unless `sep` is given.
  function split(value, sep, maxsplit) {
    const most = countArgument(maxsplit, "split");
    if (!isMissing(sep)) {
      const parts = value.split(separator(sep, "split"));
      if (parts.length > most + 1) parts.push(parts.splice(most).join(sep.value));
      return parts;
    }
    const parts = [];
    for (const match of value.matchAll(kWord)) {
      if (parts.length >= most) return [...parts, value.slice(match.index)];
      parts.push(match[0]);
    }
    return parts;
  }

  function rsplit(value, sep, maxsplit) {
    const parts = value.split(separator(sep, "rsplit"));
    const n = parts.length - countArgument(maxsplit, "rsplit");
    if (n > 1) parts.unshift(parts.splice(0, n).join(sep.value));
    return parts;
  }

  function splitLines(value) {
    const lines = value.split(kLineEnd);
    if (lines.at(-1) === "") lines.pop();
    return lines;
  }

  function replace(value, from, to, count) {
    const parts = value.split(separator(from, "replace"));
    const rest = parts.splice(countArgument(count, "replace") + 1).map((part) => from.value + part);
    return parts.join(textArgument(to, "replace")) + rest.join("");
  }

  function capitalize(value) {
    const [first = ""] = value;
    return first.toUpperCase() + value.slice(first.length).toLowerCase();
  }

  const affix = (name) => (v, wanted) => {
    const any = wanted !== undefined && isArray(wanted) ? wanted.value : [wanted];
    return bool(any.some((w) => bare(v.value)[name](bare(textArgument(w, name)))));
  };

  const kStringMethods = table({
    upper: (v) => str(v.value.toUpperCase()),
    lower: (v) => str(v.value.toLowerCase()),
    title: (v) => str(v.value.replace(/\p{L}+/gu, capitalize)),
    capitalize: (v) => str(capitalize(v.value)),
    "strip chars": (v, chars) => str(strip(v.value, chars, true, true)),
    "lstrip chars": (v, chars) => str(strip(v.value, chars, true, false)),
    "rstrip chars": (v, chars) => str(strip(v.value, chars, false, true)),
    "startswith prefix": affix("startsWith"),
    "endswith suffix": affix("endsWith"),
    "split sep maxsplit": (v, sep, maxsplit) => list(split(v.value, sep, maxsplit).map(str)),
    "rsplit sep maxsplit": (v, sep, maxsplit) => list(rsplit(v.value, sep, maxsplit).map(str)),
    splitlines: (v) => list(splitLines(v.value).map(str)),
    "replace old new count": (v, from, to, count) => str(replace(v.value, from, to, count)),
    "join items": (v, parts) => str(items(parts).map((part) => textArgument(part, "join")).join(v.value)),
  });

  const pairs = (map) => Array.from(map, ([key, value]) => new hotset.TupleValue([str(key), value]));
  const kMappingMethods = table({
    "get key default": (v, key, missing) => hotset.item(v, key) ?? missing ?? new hotset.NullValue(),
    items: (v) => list(pairs(v.value)),
    keys: (v) => list(items(v)),
    values: (v) => list(Array.from(v.value.values())),
  });

  // The method `name` of a value as something that can be called; undefined if it has none.
  function method(v, name) {
    const found = (isString(v) ? kStringMethods : isMapping(v) ? kMappingMethods : undefined)?.get(name);
    return found && new hotset.FunctionValue((given) => invoke(found, v, ...separate(given)));
  }

  Object.assign(hotset, { table, invoke, isMissing, numberArgument, textArgument, strip, splitLines, replace,
                          capitalize, method, pairs });
})(globalThis.hotset);
