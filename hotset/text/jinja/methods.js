// Methods of strings, mappings and lists as Python has them. Each is called with the value, the
// positional arguments and a Map of the named ones.
"use strict";

(function (hotset) {
  const { TemplateError, isString, isArray, isMapping, str, bool, int, list, items, equal,
          typeName, text, characters, bare } = hotset;

  // What str.isspace() says of a character.
  const kSpace = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
  const kLineEnd = /\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]/g;
  const kWord = new RegExp(`[^${kSpace}]+`, "g");
  const kIsSpace = new RegExp(`^[${kSpace}]$`);

  function argument(args, kwargs, index, name, missing) {
    return args[index] ?? kwargs.get(name) ?? missing;
  }

  function need(args, index, what) {
    if (args[index] === undefined) throw new TemplateError(`${what}: an argument is missing`);
    return args[index];
  }

  function textArgument(args, index, what) {
    const v = need(args, index, what);
    if (!isString(v)) throw new TemplateError(`${what}: found ${typeName(v)}, expected a str`);
    return v.value;
  }

  function numberArgument(v, missing, what) {
    if (v === undefined || v instanceof hotset.NullValue) return missing;
    if (!hotset.isNumber(v)) throw new TemplateError(`${what}: found ${typeName(v)}, expected an int`);
    return hotset.toNumber(v);
  }

  function strip(value, chars, atStart, atEnd) {
    const set = chars === null ? null : new Set(bare(chars));
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

  function stripMethod(atStart, atEnd) {
    return (v, args) => {
      const none = args[0] === undefined || args[0] instanceof hotset.NullValue;
      return str(strip(v.value, none ? null : textArgument(args, 0, "strip"), atStart, atEnd));
    };
  }

  function splitArguments(args, kwargs) {
    const sep = argument(args, kwargs, 0, "sep", new hotset.NullValue());
    const most = numberArgument(argument(args, kwargs, 1, "maxsplit"), -1, "split");
    if (isString(sep) && sep.value === "") throw new TemplateError("split: the separator is empty");
    return [isString(sep) ? sep.value : null, most < 0 ? Infinity : most];
  }

  function split(v, args, kwargs) {
    const [sep, most] = splitArguments(args, kwargs);
    let parts = [];
    if (sep !== null) {
      parts = v.value.split(sep);
      if (parts.length > most + 1) parts.push(parts.splice(most).join(sep));
    } else {
      for (const match of v.value.matchAll(kWord)) {
        if (parts.length >= most) {
          parts.push(v.value.slice(match.index));
          break;
        }
        parts.push(match[0]);
      }
    }
    return list(parts.map(str));
  }

  function rsplit(v, args, kwargs) {
    const [sep, most] = splitArguments(args, kwargs);
    if (sep !== null) {
      const parts = v.value.split(sep);
      const n = parts.length - most;
      if (n > 1) parts.unshift(parts.splice(0, n).join(sep));
      return list(parts.map(str));
    }
    const words = Array.from(v.value.matchAll(kWord));
    const n = words.length - most;
    if (!(n > 0)) return list(words.map((match) => str(match[0])));
    const kept = words.slice(n).map((match) => str(match[0]));
    const last = words[n - 1];
    return list([str(strip(v.value.slice(0, last.index + last[0].length), null, false, true)), ...kept]);
  }

  function splitLines(value) {
    const lines = value.split(kLineEnd);
    if (lines.at(-1) === "") lines.pop();
    return lines;
  }

  function affix(name, has) {
    return (v, args) => {
      const wanted = need(args, 0, name);
      const any = isArray(wanted) ? wanted.value : [wanted];
      return bool(any.some((w) => has(bare(v.value), bare(textArgument([w], 0, name)))));
    };
  }

  function replace(v, from, to, most) {
    if (from === "" || most !== Infinity) {
      const parts = from === "" ? ["", ...characters(v), ""] : v.split(from);
      let out = parts[0];
      for (let i = 1; i < parts.length; ++i) out += (i <= most ? to : from) + parts[i];
      return out;
    }
    return v.split(from).join(to);
  }

  function replaceMethod(v, args, kwargs) {
    const most = numberArgument(argument(args, kwargs, 2, "count"), -1, "replace");
    return str(replace(v.value, textArgument(args, 0, "replace"), textArgument(args, 1, "replace"),
                       most < 0 ? Infinity : most));
  }

  const capitalize = (value) => {
    const [first = "", ...rest] = Array.from(value);
    return first.toUpperCase() + rest.join("").toLowerCase();
  };
  const title = (value) => value.replace(/\p{L}+/gu, capitalize);
  const indexOf = (value, wanted, last) => {
    const [all, part] = [bare(value), bare(wanted)];
    const at = last ? all.lastIndexOf(part) : all.indexOf(part);
    return at < 0 ? -1 : hotset.countCharacters(all.slice(0, at));
  };
  const allOf = (pattern) => (v) => bool(pattern.test(bare(v.value)));
  const hasCase = (value) => value.toUpperCase() !== value.toLowerCase();
  const pad = (v, args, place) => {
    const length = hotset.countCharacters(v.value);
    const n = numberArgument(args[0], 0, "width") - length;
    const fill = args[1] === undefined ? " " : textArgument(args, 1, "fill character");
    if (n <= 0) return str(v.value);
    const left = place === "left" ? 0 : place === "right" ? n
                 : Math.floor(n / 2) + (n & (n + length) & 1);
    return str(fill.repeat(left) + v.value + fill.repeat(n - left));
  };

  function formatPercent(pattern, values) {
    let next = 0;
    return pattern.replace(/%(-?)(0?)(\d*)(?:\.(\d+))?([a-zA-Z%])/g,
                           (whole, minus, zero, width, precision, kind) => {
      if (kind === "%") return "%";
      if (!"sdirfx".includes(kind)) throw new TemplateError(`cannot format '${whole}'`);
      if (next >= values.length) throw new TemplateError("not enough values for a format");
      const v = values[next++];
      let out;
      if (kind === "s" || kind === "r") {
        out = kind === "s" ? text(v) : hotset.repr(v);
        if (precision !== undefined) out = Array.from(out).slice(0, Number(precision)).join("");
      } else {
        const number = numberArgument(v, 0, `format '${whole}'`);
        const whole_part = typeof number === "bigint" ? number : Math.trunc(number);
        out = kind === "f" ? Number(number).toFixed(Math.min(Number(precision ?? 6), 100))
              : whole_part.toString(kind === "x" ? 16 : 10);
      }
      const n = Math.min(Number(width || 0), 1000);
      if (minus) return out.padEnd(n);
      return zero && kind !== "s" ? out.padStart(n, "0") : out.padStart(n);
    });
  }

  function formatBraces(v, args, kwargs) {
    let next = 0;
    return str(v.value.replace(/\{\{|\}\}|\{(\w*)\}|[{}]/g, (whole, name) => {
      if (whole === "{{" || whole === "}}") return whole[0];
      if (name === undefined) throw new TemplateError("format: only {}, {0} and {name} can be used");
      const found = name === "" ? args[next++] : /^\d+$/.test(name) ? args[Number(name)] : kwargs.get(name);
      if (found === undefined) throw new TemplateError(`format: found nothing for '${whole}'`);
      return text(found);
    }));
  }

  function partition(v, args, last) {
    const sep = textArgument(args, 0, "partition");
    const at = last ? v.value.lastIndexOf(sep) : v.value.indexOf(sep);
    const parts = at >= 0 ? [v.value.slice(0, at), sep, v.value.slice(at + sep.length)]
                  : last ? ["", "", v.value] : [v.value, "", ""];
    return new hotset.TupleValue(parts.map(str));
  }

  const kStringMethods = new Map(Object.entries({
    upper: (v) => str(v.value.toUpperCase()),
    lower: (v) => str(v.value.toLowerCase()),
    title: (v) => str(title(v.value)),
    capitalize: (v) => str(capitalize(v.value)),
    swapcase: (v) => str(characters(v.value).map((c) => c === c.toUpperCase() ? c.toLowerCase() : c.toUpperCase()).join("")),
    strip: stripMethod(true, true),
    lstrip: stripMethod(true, false),
    rstrip: stripMethod(false, true),
    startswith: affix("startswith", (value, wanted) => value.startsWith(wanted)),
    endswith: affix("endswith", (value, wanted) => value.endsWith(wanted)),
    removeprefix: (v, args) => {
      const prefix = textArgument(args, 0, "removeprefix");
      return str(v.value.startsWith(prefix) ? v.value.slice(prefix.length) : v.value);
    },
    removesuffix: (v, args) => {
      const suffix = textArgument(args, 0, "removesuffix");
      return str(suffix !== "" && v.value.endsWith(suffix) ? v.value.slice(0, -suffix.length) : v.value);
    },
    split, rsplit,
    splitlines: (v) => list(splitLines(v.value).map(str)),
    partition: (v, args) => partition(v, args, false),
    rpartition: (v, args) => partition(v, args, true),
    replace: replaceMethod,
    find: (v, args) => int(indexOf(v.value, textArgument(args, 0, "find"), false)),
    rfind: (v, args) => int(indexOf(v.value, textArgument(args, 0, "rfind"), true)),
    index: (v, args) => {
      const at = indexOf(v.value, textArgument(args, 0, "index"), false);
      if (at < 0) throw new TemplateError("index: substring not found");
      return int(at);
    },
    count: (v, args) => {
      const wanted = textArgument(args, 0, "count");
      return int((wanted === "" ? Array.from(v.value).length + 2 : v.value.split(wanted).length) - 1);
    },
    join: (v, args) => str(items(need(args, 0, "join")).map((item) => textArgument([item], 0, "join")).join(v.value)),
    format: formatBraces,
    zfill: (v, args) => {
      const n = numberArgument(need(args, 0, "zfill"), 0, "zfill");
      const sign = /^[+-]/.test(v.value) ? v.value[0] : "";
      return str(sign + v.value.slice(sign.length).padStart(n - sign.length, "0"));
    },
    ljust: (v, args) => pad(v, args, "left"),
    rjust: (v, args) => pad(v, args, "right"),
    center: (v, args) => pad(v, args, "center"),
    isdigit: allOf(/^\p{Nd}+$/u),
    isnumeric: allOf(/^\p{N}+$/u),
    isalpha: allOf(/^\p{L}+$/u),
    isalnum: allOf(/^[\p{L}\p{N}]+$/u),
    isspace: allOf(new RegExp(`^[${kSpace}]+$`)),
    islower: (v) => bool(hasCase(v.value) && v.value === v.value.toLowerCase()),
    isupper: (v) => bool(hasCase(v.value) && v.value === v.value.toUpperCase()),
  }));

  const pairs = (map) => Array.from(map, ([key, value]) => new hotset.TupleValue([str(key), value]));
  const kMappingMethods = new Map(Object.entries({
    get: (v, args) => {
      const key = need(args, 0, "get");
      return (isString(key) ? v.value.get(key.value) : undefined) ?? args[1] ?? new hotset.NullValue();
    },
    items: (v) => list(pairs(v.value)),
    keys: (v) => list(items(v)),
    values: (v) => list(Array.from(v.value.values())),
    copy: (v) => new hotset.ObjectValue(new Map(v.value)),
  }));

  const kListMethods = new Map(Object.entries({
    index: (v, args) => {
      const at = v.value.findIndex((item) => equal(item, need(args, 0, "index")));
      if (at < 0) throw new TemplateError("index: no such item");
      return int(at);
    },
    count: (v, args) => int(v.value.filter((item) => equal(item, need(args, 0, "count"))).length),
    copy: (v) => list(v.value.slice()),
  }));

  // The method `name` of a value as something that can be called; undefined if it has none.
  function method(v, name) {
    const table = isString(v) ? kStringMethods : isMapping(v) ? kMappingMethods
                  : isArray(v) ? kListMethods : undefined;
    const found = table?.get(name);
    if (found === undefined) return undefined;
    return new hotset.FunctionValue((given) => {
      const [args, kwargs] = hotset.separate(given);
      return found(v, args, kwargs);
    });
  }

  // Arguments of a call, the Map of named ones taken off.
  hotset.separate = (given) =>
    given.at(-1) instanceof hotset.KeywordArgumentsValue
      ? [given.slice(0, -1), given.at(-1).value] : [given, new Map()];

  Object.assign(hotset, { argument, numberArgument, textArgument, need, strip, splitLines, replace,
                          capitalize, pad, formatPercent, method, pairs });
})(globalThis.hotset);
