// Filters and tests, as Jinja has them for Python's values.
"use strict";

(function (hotset) {
  const { TemplateError, isString, isNumber, isArray, isMapping, isUndefined, truth, toNumber, str,
          bool, int, list, typeName, text, json, equal, compare, items, length, contains, characters, argument,
          numberArgument, textArgument, need } = hotset;

  const isInteger = (v) => v instanceof hotset.IntegerValue;
  const isOdd = (v, what) => {
    const number = numberArgument(v, 0, what);
    return typeof number === "bigint" ? number % 2n !== 0n : number % 2 !== 0;
  };
  const isNone = (v) => v === undefined || v instanceof hotset.NullValue;
  const flag = (v) => v !== undefined && truth(v);

  // The item or attribute `name` of a value, as x[name]; undefined if there is none.
  function item(v, key) {
    if ((isMapping(v) || v instanceof hotset.NamespaceValue) && isString(key)) {
      return v.value.get(key.value);
    }
    if ((isArray(v) || isString(v)) && key instanceof hotset.IntegerValue) {
      const at = Number(key.value);
      if (isArray(v)) return v.value.at(at);
      const c = hotset.isPlain(v.value) ? v.value.at(at) : characters(v.value).at(at);
      return c === undefined ? undefined : str(c);
    }
    return undefined;
  }

  // "a.b.0", an index, or nothing: the value itself.
  function attributeOf(v, path) {
    if (isNone(path)) return v;
    const parts = isString(path) ? path.value.split(".") : [path];
    for (const part of parts) {
      const key = typeof part !== "string" ? part : /^\d+$/.test(part) ? int(Number(part)) : str(part);
      v = item(v, key) ?? new hotset.UndefinedValue();
    }
    return v;
  }

  const folded = (v, caseSensitive) => (isString(v) && !caseSensitive ? str(v.value.toLowerCase()) : v);

  function sorted(values, { reverse, caseSensitive, key }) {
    const keyed = values.map((v) => [folded(key(v), caseSensitive), v]);
    keyed.sort(([a], [b]) => (reverse ? compare(b, a) : compare(a, b)));
    return keyed.map(([, v]) => v);
  }

  function extreme(v, args, kwargs, sign) {
    const path = argument(args, kwargs, 1, "attribute");
    const caseSensitive = flag(argument(args, kwargs, 0, "case_sensitive"));
    const key = (x) => folded(attributeOf(x, path), caseSensitive);
    let best;
    for (const x of items(v)) {
      if (best === undefined || sign * compare(key(x), key(best)) > 0) best = x;
    }
    return best ?? new hotset.UndefinedValue();
  }

  function toInteger(v, missing) {
    if (v instanceof hotset.IntegerValue) return v;
    if (isNumber(v)) return Number.isFinite(toNumber(v)) ? int(BigInt(Math.trunc(toNumber(v)))) : missing;
    if (!isString(v)) return missing;
    const digits = hotset.strip(v.value, null, true, true);
    if (/^[+-]?\d+(_\d+)*$/.test(digits)) {
      const text = digits.replaceAll("_", "");
      if (text.length > 300) throw new TemplateError("int: found more than 300 digits");
      return int(text.startsWith("-") ? -BigInt(text.slice(1)) : BigInt(text.replace("+", "")));
    }
    const number = toFloat(v, undefined);
    return number === undefined || !Number.isFinite(number.value) ? missing : int(BigInt(Math.trunc(number.value)));
  }

  function toFloat(v, missing) {
    if (isNumber(v)) return new hotset.FloatValue(Number(toNumber(v)));
    if (!isString(v)) return missing;
    const digits = hotset.strip(v.value, null, true, true);
    return /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(digits)
      ? new hotset.FloatValue(Number(digits)) : missing;
  }

  function round(v, args, kwargs) {
    const digits = numberArgument(argument(args, kwargs, 0, "precision"), 0, "round");
    const how = argument(args, kwargs, 1, "method", str("common")).value;
    const number = numberArgument(v, 0, "round");
    if (how === "common" && digits === 0 && isInteger(v)) return v;
    const scale = 10 ** digits;
    const scaled = Number(number) * scale;
    const floor = Math.floor(scaled);
    if (how === "ceil") return new hotset.FloatValue(Math.ceil(scaled) / scale);
    if (how === "floor") return new hotset.FloatValue(floor / scale);
    // Ties to even, as Python.
    if (digits === 0 && scaled - floor === 0.5) return new hotset.FloatValue(floor + (floor % 2 === 0 ? 0 : 1));
    return new hotset.FloatValue(digits >= 0 && digits <= 100 ? Number(Number(number).toFixed(digits))
                                                             : Math.round(scaled) / scale);
  }

  function toJson(v, args, kwargs) {
    const indent = argument(args, kwargs, 1, "indent");
    const separators = argument(args, kwargs, 2, "separators");
    const spaces = isNone(indent) ? null : isString(indent) ? indent.value
                   : " ".repeat(Math.min(Math.max(numberArgument(indent, 0, "tojson"), 0), 1000));
    return str(json(v, {
      ensureAscii: flag(argument(args, kwargs, 0, "ensure_ascii")),
      indent: spaces,
      separators: isNone(separators) ? [spaces === null ? ", " : ",", ": "]
                  : items(separators).map((s) => textArgument([s], 0, "tojson")),
      sortKeys: flag(argument(args, kwargs, 3, "sort_keys")),
    }));
  }

  function indent(v, args, kwargs) {
    if (!isString(v)) throw new TemplateError(`indent: found ${typeName(v)}, expected a str`);
    const width = argument(args, kwargs, 0, "width", int(4));
    const by = isString(width) ? width.value : " ".repeat(Math.min(numberArgument(width, 4, "indent"), 1000));
    const blank = flag(argument(args, kwargs, 2, "blank"));
    const lines = hotset.splitLines(text(v) + "\n");
    const indented = lines.map((line, i) => (i === 0 || (line === "" && !blank) ? line : by + line));
    return str((flag(argument(args, kwargs, 1, "first")) ? by : "") + indented.join("\n"));
  }

  function groupBy(v, args, kwargs) {
    const path = argument(args, kwargs, 0, "attribute");
    const missing = argument(args, kwargs, 1, "default");
    const key = (x) => {
      const found = attributeOf(x, path);
      return isUndefined(found) && missing !== undefined ? missing : found;
    };
    const groups = [];
    for (const x of sorted(items(v), { key })) {
      const last = groups.at(-1);
      if (last && equal(folded(last[0]), folded(key(x)))) last[1].push(x);
      else groups.push([key(x), [x]]);
    }
    return list(groups.map(([name, members]) => new hotset.TupleValue([name, list(members)])));
  }

  function batch(v, args, kwargs) {
    const n = numberArgument(argument(args, kwargs, 0, "linecount"), 0, "batch");
    if (!(n >= 1)) throw new TemplateError(`batch: found ${n}, expected at least 1`);
    const fill = argument(args, kwargs, 1, "fill_with");
    const all = items(v);
    const rows = [];
    for (let i = 0; i < all.length; i += n) {
      const row = all.slice(i, i + n);
      while (!isNone(fill) && row.length < n) row.push(fill);
      rows.push(list(row));
    }
    return list(rows);
  }

  function unique(v, args, kwargs) {
    const caseSensitive = flag(argument(args, kwargs, 0, "case_sensitive"));
    const path = argument(args, kwargs, 1, "attribute");
    const seen = [];
    return list(items(v).filter((x) => {
      const key = folded(attributeOf(x, path), caseSensitive);
      if (isMapping(key) || (isArray(key) && !(key instanceof hotset.TupleValue))) {
        throw new TemplateError(`unique: found ${typeName(key)}, which has no hash`);
      }
      if (seen.some((other) => equal(key, other))) return false;
      seen.push(key);
      return true;
    }));
  }

  function join(v, args, kwargs) {
    const path = argument(args, kwargs, 1, "attribute");
    return str(items(v).map((x) => text(attributeOf(x, path))).join(text(argument(args, kwargs, 0, "d", str("")))));
  }

  function entries(v, what) {
    if (!isMapping(v)) throw new TemplateError(`${what}: found ${typeName(v)}, expected a dict`);
    return v.value;
  }

  const titleCase = (value) => value.split(/([-\s({[<]+)/)
    .map((part) => part.charAt(0).toUpperCase() + part.slice(1).toLowerCase()).join("");

  const kEscapes = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&#34;", "'": "&#39;" };
  const escape = (v) => str(text(v).replace(/[&<>"']/g, (c) => kEscapes[c]));
  const withDefault = (v, args, kwargs) =>
    isUndefined(v) || (flag(argument(args, kwargs, 1, "boolean")) && !truth(v))
      ? argument(args, kwargs, 0, "default_value", str("")) : v;
  const count = (v) => int(length(v));
  const method = (name) => (v, args, kwargs) => {
    const given = kwargs.size > 0 ? [...args, new hotset.KeywordArgumentsValue(kwargs)] : args;
    return hotset.method(str(text(v)), name).value(given);
  };

  const kFilters = new Map(Object.entries({
    abs: (v) => {
      const number = numberArgument(v, 0, "abs");
      return v instanceof hotset.FloatValue ? new hotset.FloatValue(Math.abs(number)) : int(number < 0 ? -number : number);
    },
    attr: (v, args) => hotset.method(v, textArgument(args, 0, "attr")) ?? new hotset.UndefinedValue(),
    batch,
    capitalize: method("capitalize"),
    center: (v, args, kwargs) => hotset.pad(str(text(v)), [argument(args, kwargs, 0, "width", int(80))], "center"),
    count, length: count,
    d: withDefault, default: withDefault,
    dictsort: (v, args, kwargs) => list(sorted(hotset.pairs(entries(v, "dictsort")), {
      caseSensitive: flag(argument(args, kwargs, 0, "case_sensitive")),
      key: (pair) => pair.value[argument(args, kwargs, 1, "by", str("key")).value === "key" ? 0 : 1],
      reverse: flag(argument(args, kwargs, 2, "reverse")),
    })),
    e: escape, escape,
    first: (v) => items(v)[0] ?? new hotset.UndefinedValue(),
    float: (v, args, kwargs) => toFloat(v, argument(args, kwargs, 0, "default", new hotset.FloatValue(0))),
    format: (v, args) => str(hotset.formatPercent(text(v), args)),
    groupby: groupBy,
    indent,
    int: (v, args, kwargs) => toInteger(v, argument(args, kwargs, 0, "default", int(0))),
    items: (v) => list(isUndefined(v) ? [] : hotset.pairs(entries(v, "items"))),
    join,
    last: (v) => items(v).at(-1) ?? new hotset.UndefinedValue(),
    list: (v) => list(items(v).slice()),
    lower: method("lower"),
    max: (v, args, kwargs) => extreme(v, args, kwargs, 1),
    min: (v, args, kwargs) => extreme(v, args, kwargs, -1),
    replace: (v, args, kwargs) => method("replace")(v, args.map((a, i) => (i < 2 ? str(text(a)) : a)), kwargs),
    reverse: (v) => (isString(v) ? str(characters(v.value).reverse().join("")) : list(items(v).slice().reverse())),
    round,
    safe: (v) => str(text(v)),
    sort: (v, args, kwargs) => list(sorted(items(v), {
      reverse: flag(argument(args, kwargs, 0, "reverse")),
      caseSensitive: flag(argument(args, kwargs, 1, "case_sensitive")),
      key: (x) => attributeOf(x, argument(args, kwargs, 2, "attribute")),
    })),
    string: (v) => str(text(v)),
    sum: (v, args, kwargs) => items(v).reduce(
      (total, x) => hotset.add(total, attributeOf(x, argument(args, kwargs, 0, "attribute"))),
      argument(args, kwargs, 1, "start", int(0))),
    title: (v) => str(titleCase(text(v))),
    tojson: toJson,
    trim: (v, args, kwargs) => method("strip")(v, [argument(args, kwargs, 0, "chars", new hotset.NullValue())], new Map()),
    unique,
    upper: method("upper"),
    wordcount: (v) => int((text(v).match(/[\p{L}\p{N}_]+/gu) ?? []).length),
  }));

  const kTests = new Map(Object.entries({
    boolean: (v) => v instanceof hotset.BooleanValue,
    callable: (v) => v instanceof hotset.FunctionValue,
    defined: (v) => !isUndefined(v),
    divisibleby: (v, n) => BigInt(toNumber(v)) % BigInt(toNumber(n)) === 0n,
    eq: equal, equalto: equal, "==": equal,
    even: (v) => !isOdd(v, "even"),
    false: (v) => v instanceof hotset.BooleanValue && !v.value,
    float: (v) => v instanceof hotset.FloatValue,
    ge: (a, b) => compare(a, b) >= 0, ">=": (a, b) => compare(a, b) >= 0,
    gt: (a, b) => compare(a, b) > 0, greaterthan: (a, b) => compare(a, b) > 0, ">": (a, b) => compare(a, b) > 0,
    in: (v, container) => contains(container, v),
    integer: isInteger,
    iterable: (v) => isString(v) || isArray(v) || isMapping(v) || isUndefined(v),
    le: (a, b) => compare(a, b) <= 0, "<=": (a, b) => compare(a, b) <= 0,
    lower: (v) => truth(hotset.method(str(text(v)), "islower").value([])),
    lt: (a, b) => compare(a, b) < 0, lessthan: (a, b) => compare(a, b) < 0, "<": (a, b) => compare(a, b) < 0,
    mapping: isMapping,
    ne: (a, b) => !equal(a, b), "!=": (a, b) => !equal(a, b),
    none: (v) => v instanceof hotset.NullValue,
    number: isNumber,
    odd: (v) => isOdd(v, "odd"),
    sameas: (a, b) => a === b || (a.constructor === b.constructor && !isArray(a) && !isMapping(a) && a.value === b.value),
    sequence: (v) => isString(v) || isArray(v) || isMapping(v) || isUndefined(v),
    string: isString,
    true: (v) => v instanceof hotset.BooleanValue && v.value,
    undefined: isUndefined,
    upper: (v) => truth(hotset.method(str(text(v)), "isupper").value([])),
  }));

  function test(name, v, args) {
    const found = kTests.get(name);
    if (found === undefined) throw new TemplateError(`there is no test '${name}'`);
    if (found.length > 1) need(args, 0, `test '${name}'`);
    return found(v, ...args);
  }

  // map, select, reject, selectattr, rejectattr; undefined for other names.
  function applySelector(name, operand, args, kwargs) {
    const v = truth(operand) ? operand : list([]);  // Jinja does not look at what is false
    if (name === "map") {
      if (kwargs.has("attribute")) {
        const missing = kwargs.get("default");
        return list(items(v).map((x) => {
          const found = attributeOf(x, kwargs.get("attribute"));
          return isUndefined(found) && missing !== undefined ? missing : found;
        }));
      }
      const filter = textArgument(args, 0, "map");
      return list(items(v).map((x) => applyFilter(filter, x, args.slice(1), kwargs)));
    }
    const match = /^(select|reject)(attr)?$/.exec(name);
    if (match === null) return undefined;
    const rest = match[2] ? args.slice(1) : args;
    const path = match[2] ? need(args, 0, name) : undefined;
    return list(items(v).filter((x) => {
      const found = attributeOf(x, path);
      const passes = rest.length === 0 ? truth(found)
                     : test(textArgument(rest, 0, name), found, rest.slice(1));
      return passes === (match[1] === "select");
    }));
  }

  function applyFilter(name, v, args, kwargs) {
    const selected = applySelector(name, v, args, kwargs);
    if (selected !== undefined) return selected;
    const filter = kFilters.get(name);
    if (filter === undefined) throw new TemplateError(`there is no filter '${name}'`);
    return filter(v, args, kwargs);
  }

  Object.assign(hotset, { item, test, applyFilter });
})(globalThis.hotset);
