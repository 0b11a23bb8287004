// Filters and tests, as Jinja has them for Python's values.
"use strict";

(function (hotset) {
  const { TemplateError, isString, isNumber, isArray, isMapping, isUndefined, truth, toNumber, str,
          int, list, typeName, text, json, equal, compare, items, length, contains, characters,
          table, invoke, isMissing, numberArgument, textArgument, pairs } = hotset;

  const isInteger = (v) => v instanceof hotset.IntegerValue;
  const isBoolean = (v) => v instanceof hotset.BooleanValue;
  const isOdd = (v) => numberArgument(v, undefined, "odd") % 2 !== 0;
  const flag = (v) => v !== undefined && truth(v);
  const orUndefined = (v) => v ?? new hotset.UndefinedValue();

  // The item or attribute `key` of a value, as x[key]; undefined if there is none.
  function item(v, key) {
    if ((isMapping(v) || v instanceof hotset.NamespaceValue) && isString(key)) return v.value.get(key.value);
    if (!(isArray(v) || isString(v)) || !isInteger(key)) return undefined;
    const all = isString(v) && !hotset.isPlain(v.value) ? characters(v.value) : v.value;
    const found = all.at(Number(key.value));
    return typeof found === "string" ? str(found) : found;
  }

  // `path`: "a.b.0", an index, or nothing: the value itself. `missing`: in place of what is not there.
  function attributeOf(v, path, missing) {
    if (isMissing(path)) return v;
    for (const part of isString(path) ? path.value.split(".") : [path]) {
      const key = typeof part !== "string" ? part : /^\d+$/.test(part) ? int(Number(part)) : str(part);
      v = orUndefined(item(v, key));
    }
    return isUndefined(v) && missing !== undefined ? missing : v;
  }

  const folded = (v, caseSensitive) => (isString(v) && !flag(caseSensitive) ? str(v.value.toLowerCase()) : v);

  function sorted(values, key, reverse, caseSensitive) {
    const keyed = values.map((v) => [folded(key(v), caseSensitive), v]);
    keyed.sort(([a], [b]) => (flag(reverse) ? compare(b, a) : compare(a, b)));
    return list(keyed.map(([, v]) => v));
  }

  // The number that a value is or a text stands for; undefined if there is none.
  function parsed(v) {
    if (isNumber(v)) return toNumber(v);
    const digits = isString(v) ? hotset.strip(v.value, undefined, true, true).replace(/(?<=\d)_(?=\d)/g, "") : "";
    return /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(digits) ? Number(digits) : undefined;
  }

  function toInteger(v, missing = int(0)) {
    const number = parsed(v);
    if (number === undefined) return missing;
    return typeof number === "bigint" ? v : hotset.safeInteger(Math.trunc(number));
  }

  function toFloat(v, missing = new hotset.FloatValue(0)) {
    const number = parsed(v);
    return number === undefined ? missing : hotset.finiteFloat(Number(number));
  }

  function toJson(v, ensureAscii, indent, separators, sortKeys) {
    const spaces = isMissing(indent) ? null : " ".repeat(Math.min(Math.max(numberArgument(indent, 0, "tojson"), 0), 1000));
    return str(json(v, {
      ensureAscii: flag(ensureAscii),
      indent: spaces,
      separators: isMissing(separators) ? [spaces === null ? ", " : ",", ": "]
                  : items(separators).map((s) => textArgument(s, "tojson")),
      sortKeys: flag(sortKeys),
    }));
  }

  function indent(v, width, first, blank) {
    if (!isString(v)) throw new TemplateError(`indent: found ${typeName(v)}, expected a str`);
    const by = " ".repeat(Math.min(numberArgument(width, 4, "indent"), 1000));
    const lines = hotset.splitLines(v.value + "\n");
    const indented = lines.map((line, i) => (i === 0 || (line === "" && !flag(blank)) ? line : by + line));
    return str((flag(first) ? by : "") + indented.join("\n"));
  }

  function unique(v) {
    const seen = [];
    return list(items(v).filter((x) => {
      const key = folded(x);
      hotset.needHash(key);
      return !seen.some((other) => equal(key, other)) && seen.push(key);
    }));
  }

  function entries(v, what) {
    if (!isMapping(v)) throw new TemplateError(`${what}: found ${typeName(v)}, expected a dict`);
    return pairs(v.value);
  }

  const titleCase = (value) => value.split(/([-\s({[<]+)/).map(hotset.capitalize).join("");
  const withDefault = (v, missing = str(""), boolean) =>
    isUndefined(v) || (flag(boolean) && !truth(v)) ? missing : v;
  const count = (v) => int(length(v));

  // Jinja does not look at what is false.
  const selected = (v) => (truth(v) ? items(v) : []);
  const passes = (v, name, args) => (name === undefined ? truth(v) : test(textArgument(name, "select"), v, args));
  const select = (wanted) => (v, name, ...args) =>
    list(selected(v).filter((x) => passes(x, name, args) === wanted));
  const selectAttribute = (wanted) => (v, path, name, ...args) => {
    textArgument(path, "selectattr");
    return list(selected(v).filter((x) => passes(attributeOf(x, path), name, args) === wanted));
  };

  const kFilters = table({
    abs: (v) => (v instanceof hotset.FloatValue ? hotset.finiteFloat : hotset.safeInteger)(Math.abs(numberArgument(v, undefined, "abs"))),
    capitalize: (v) => str(hotset.capitalize(text(v))),
    count, length: count,
    "d default_value boolean": withDefault, "default default_value boolean": withDefault,
    "dictsort case_sensitive by reverse": (v, caseSensitive, by = str("key"), reverse) =>
      sorted(entries(v, "dictsort"), (pair) => pair.value[by.value === "key" ? 0 : 1], reverse, caseSensitive),
    first: (v) => orUndefined(items(v)[0]),
    "float default": toFloat,
    "indent width first blank": indent,
    "int default": toInteger,
    items: (v) => list(isUndefined(v) ? [] : entries(v, "items")),
    "join d": (v, by = str("")) => str(items(v).map(text).join(text(by))),
    last: (v) => orUndefined(items(v).at(-1)),
    list: (v) => list(items(v).slice()),
    lower: (v) => str(text(v).toLowerCase()),
    "reject test value": select(false),
    "rejectattr attribute test value": selectAttribute(false),
    "replace old new count": (v, from, to, most) =>
      str(hotset.replace(text(v), from && str(text(from)), to && str(text(to)), most)),
    reverse: (v) => (isString(v) ? str(characters(v.value).reverse().join("")) : list(items(v).slice().reverse())),
    safe: (v) => str(text(v)),
    "select test value": select(true),
    "selectattr attribute test value": selectAttribute(true),
    "sort reverse case_sensitive attribute": (v, reverse, caseSensitive, path) =>
      sorted(items(v), (x) => attributeOf(x, path), reverse, caseSensitive),
    string: (v) => str(text(v)),
    title: (v) => str(titleCase(text(v))),
    "tojson ensure_ascii indent separators sort_keys": toJson,
    "trim chars": (v, chars) => str(hotset.strip(text(v), chars, true, true)),
    unique,
    upper: (v) => str(text(v).toUpperCase()),
  });

  const hasCase = (v, value) => text(v) === value && value.toUpperCase() !== value.toLowerCase();
  const kTests = new Map(Object.entries({
    boolean: isBoolean,
    callable: (v) => v instanceof hotset.FunctionValue,
    defined: (v) => !isUndefined(v),
    eq: equal, equalto: equal,
    even: (v) => !isOdd(v),
    false: (v) => isBoolean(v) && !v.value,
    float: (v) => v instanceof hotset.FloatValue,
    in: (v, container) => contains(container, v),
    integer: isInteger,
    iterable: (v) => isString(v) || isArray(v) || isMapping(v) || isUndefined(v),
    lower: (v) => hasCase(v, text(v).toLowerCase()),
    mapping: isMapping,
    ne: (a, b) => !equal(a, b),
    none: (v) => v instanceof hotset.NullValue,
    number: isNumber,
    odd: isOdd,
    sequence: (v) => isString(v) || isArray(v) || isMapping(v) || isUndefined(v),
    string: isString,
    true: (v) => isBoolean(v) && v.value,
    undefined: isUndefined,
    upper: (v) => hasCase(v, text(v).toUpperCase()),
  }));

  function test(name, v, args) {
    const found = kTests.get(name);
    if (found === undefined) throw new TemplateError(`there is no test '${name}'`);
    const given = args.filter((arg) => arg !== undefined);
    if (found.length !== given.length + 1) {
      throw new TemplateError(`test '${name}': found ${given.length} arguments, expected ${found.length - 1}`);
    }
    return found(v, ...given);
  }

  function applyFilter(name, v, args, kwargs) {
    if (name === "map" && args.length > 0) {
      const [filter, ...rest] = args;
      return list(selected(v).map((x) => applyFilter(textArgument(filter, "map"), x, rest, kwargs)));
    }
    const found = name === "map" ? kMap : kFilters.get(name);
    if (found === undefined) throw new TemplateError(`there is no filter '${name}'`);
    return invoke(found, v, args, kwargs);
  }
  const kMap = { name: "map", parameters: ["attribute", "default"],
                 call: (v, path, missing) => list(selected(v).map((x) => attributeOf(x, path, missing))) };

  Object.assign(hotset, { item, test, applyFilter });
})(globalThis.hotset);
