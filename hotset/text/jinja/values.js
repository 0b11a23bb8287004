// Values of templates as Python has them: text forms, JSON, equality, order. The interpreter of
// @huggingface/jinja brings the classes, but writes and compares values as JavaScript does.
"use strict";
// The text mark and the reserved one of text_marks.h.
globalThis.hotset = { mark: "\ufdd0", numberKey: "\ufdd1" };

(function (jinja, hotset) {
  const { Environment, Interpreter, parse, tokenize } = jinja;

  // The classes of values are not exported, but there is a way to an instance of each.
  const probe = new Interpreter(new Environment());
  const instance = (type, value) => probe.evaluate({ type, value }, probe.global);
  const classOf = (value) => value.constructor;
  const IntegerValue = classOf(instance("IntegerLiteral", 0));
  const FloatValue = classOf(instance("FloatLiteral", 0));
  const StringValue = classOf(instance("StringLiteral", ""));
  const ArrayValue = classOf(instance("ArrayLiteral", []));
  const TupleValue = classOf(instance("TupleLiteral", []));
  const ObjectValue = classOf(instance("ObjectLiteral", new Map()));
  const NullValue = classOf(instance("Comment"));
  const UndefinedValue = classOf(probe.evaluate(undefined, probe.global));
  const BooleanValue = classOf(new IntegerValue(0).__bool__());
  const namespace = probe.global.variables.get("namespace");
  const FunctionValue = classOf(namespace);
  const NamespaceValue = classOf(namespace.value([]));
  let KeywordArgumentsValue;
  probe.global.setVariable("capture", new FunctionValue((args) => {
    KeywordArgumentsValue = classOf(args[0]);
    return new NullValue();
  }));
  probe.run(parse(tokenize("{{ capture(name=1) }}")));

  // What a template does wrong, as opposed to a bug of this code.
  class TemplateError extends Error {}
  // raise_exception(): the template refuses what it was given.
  class Refusal extends TemplateError {}

  const isString = (v) => v instanceof StringValue;
  const isNumber = (v) =>
    v instanceof IntegerValue || v instanceof FloatValue || v instanceof BooleanValue;
  const isArray = (v) => v instanceof ArrayValue;  // tuples included
  const isMapping = (v) => v instanceof ObjectValue;
  const isUndefined = (v) => v instanceof UndefinedValue;
  const truth = (v) => v.__bool__().value;
  // A number, or a bigint: an integer of the input that a number cannot hold. Those are written and
  // compared; nobody computes with them.
  const toNumber = (v) => (v instanceof BooleanValue ? Number(v.value) : v.value);

  // Text marks (text_marks.h) belong to the character before them, and change no comparison.
  const kCharacter = new RegExp(`[^]${hotset.mark}*`, "gu");
  const characters = (value) => value.match(kCharacter) ?? [];
  // Where every code unit is a character, so that a long text need not become a list of short ones.
  const kWide = new RegExp(`[\\ud800-\\udfff${hotset.mark}]`);
  const isPlain = (value) => !kWide.test(value);
  function countCharacters(value) {
    if (isPlain(value)) return value.length;
    let n = value[0] === hotset.mark ? 1 : 0;
    for (let i = 0; i < value.length; ++i) {
      const unit = value.charCodeAt(i);
      if ((unit & 0xfc00) !== 0xdc00 && unit !== 0xfdd0) ++n;
    }
    return n;
  }
  const bare = (value) => (value.includes(hotset.mark) ? value.replaceAll(hotset.mark, "") : value);

  const str = (text) => new StringValue(text);
  const bool = (flag) => new BooleanValue(flag);
  const int = (number) => new IntegerValue(number);
  const list = (values) => new ArrayValue(values);
  function checked(number, isRight) {
    if (!isRight) throw new TemplateError("the result is no number, or one that is too large");
    return number;
  }
  const safeInteger = (number) => int(checked(number, Number.isSafeInteger(number)));
  const finiteFloat = (number) => new FloatValue(checked(number, Number.isFinite(number)));

  function typeName(v) {
    if (isString(v)) return "str";
    if (v instanceof BooleanValue) return "bool";
    if (v instanceof IntegerValue) return "int";
    if (v instanceof FloatValue) return "float";
    if (v instanceof NullValue) return "None";
    if (isUndefined(v)) return "undefined";
    if (v instanceof TupleValue) return "tuple";
    if (isArray(v)) return "list";
    if (isMapping(v)) return "dict";
    return v instanceof FunctionValue ? "function" : "namespace";
  }

  function floatText(number) {
    if (Object.is(number, -0)) return "-0.0";
    const size = Math.abs(number);
    if (size !== 0 && (size < 1e-4 || size >= 1e16)) {
      return number.toExponential().replace(/e([+-])(\d)$/, "e$10$2");
    }
    return Number.isInteger(number) ? number.toFixed(1) : String(number);
  }

  const kEscapes = { "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t" };
  function quoted(text) {
    const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
    let out = quote;
    for (const c of text) {
      const code = c.codePointAt(0);
      if (c === quote) out += "\\" + c;
      else if (c in kEscapes) out += kEscapes[c];
      else if (c === " " || c === hotset.mark || !/[\p{C}\p{Z}]/u.test(c)) out += c;
      else if (code < 0x100) out += "\\x" + code.toString(16).padStart(2, "0");
      else if (code < 0x10000) out += "\\u" + code.toString(16).padStart(4, "0");
      else out += "\\U" + code.toString(16).padStart(8, "0");
    }
    return out + quote;
  }

  // As repr().
  function repr(v) {
    return isString(v) ? quoted(v.value) : text(v);
  }

  // As str().
  function text(v) {
    if (isString(v)) return v.value;
    if (v instanceof BooleanValue) return v.value ? "True" : "False";
    if (v instanceof IntegerValue) return String(v.value);
    if (v instanceof FloatValue) return floatText(v.value);
    if (v instanceof NullValue) return "None";
    if (isUndefined(v)) return "";
    if (v instanceof TupleValue) {
      return "(" + v.value.map(repr).join(", ") + (v.value.length === 1 ? ",)" : ")");
    }
    if (isArray(v)) return "[" + v.value.map(repr).join(", ") + "]";
    if (isMapping(v)) {
      return "{" + Array.from(v.value, ([key, item]) => quoted(key) + ": " + repr(item)).join(", ") + "}";
    }
    throw new TemplateError(`found a ${typeName(v)} where a text belongs`);
  }

  function jsonString(value, ensureAscii) {
    const json = JSON.stringify(value);
    if (!ensureAscii) return json;
    // The mark is no text: it must still be found in what is rendered.
    return json.replace(/[\x7f-\uffff]/g, (c) =>
      c === hotset.mark ? c : "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
  }

  // As json.dumps(). `options`: ensureAscii, indent (a string or null), separators [item, key],
  // sortKeys.
  function json(v, options, padding = "\n") {
    if (isString(v)) return jsonString(v.value, options.ensureAscii);
    if (v instanceof BooleanValue) return String(v.value);
    if (v instanceof IntegerValue) return String(v.value);
    if (v instanceof FloatValue) return floatText(v.value);
    if (v instanceof NullValue) return "null";
    const isObject = isMapping(v);
    if (!isObject && !isArray(v)) {
      throw new TemplateError(`tojson: found ${typeName(v)}, which JSON cannot hold`);
    }
    const inner = options.indent === null ? "" : padding + options.indent;
    const [comma, colon] = options.separators;
    let parts;
    if (isObject) {
      const keys = Array.from(v.value.keys());
      if (options.sortKeys) keys.sort(compareText);
      parts = keys.map((key) => jsonString(key, options.ensureAscii) + colon +
                                json(v.value.get(key), options, inner));
    } else {
      parts = v.value.map((item) => json(item, options, inner));
    }
    const [open, close] = isObject ? "{}" : "[]";
    if (parts.length === 0) return open + close;
    return open + inner + parts.join(comma + inner) + (inner === "" ? "" : padding) + close;
  }

  // As ==.
  function equal(a, b) {
    if (isNumber(a) && isNumber(b)) return toNumber(a) == toNumber(b);
    if (isString(a) && isString(b)) return bare(a.value) === bare(b.value);
    if (isArray(a) && isArray(b)) {
      return (a instanceof TupleValue) === (b instanceof TupleValue) &&
             a.value.length === b.value.length && a.value.every((x, i) => equal(x, b.value[i]));
    }
    if (isMapping(a) && isMapping(b)) {
      return a.value.size === b.value.size &&
             Array.from(a.value).every(([k, x]) => b.value.has(k) && equal(x, b.value.get(k)));
    }
    if (a instanceof NullValue || isUndefined(a)) return classOf(a) === classOf(b);
    return a === b;
  }

  // By code point, as Python orders strings.
  function compareText(a, b) {
    const left = Array.from(bare(a));
    const right = Array.from(bare(b));
    for (let i = 0; i < Math.min(left.length, right.length); ++i) {
      if (left[i] !== right[i]) return left[i].codePointAt(0) - right[i].codePointAt(0);
    }
    return left.length - right.length;
  }

  // Negative, zero or positive.
  function compare(a, b) {
    if (isNumber(a) && isNumber(b)) {
      const [x, y] = [toNumber(a), toNumber(b)];
      return x < y ? -1 : x > y ? 1 : 0;
    }
    if (isString(a) && isString(b)) return compareText(a.value, b.value);
    throw new TemplateError(`cannot order ${typeName(a)} and ${typeName(b)}`);
  }

  // As iter().
  function items(v) {
    if (isArray(v)) return v.value;
    if (isMapping(v)) return Array.from(v.value.keys(), str);
    if (isString(v)) return characters(v.value).map(str);
    if (isUndefined(v)) return [];
    throw new TemplateError(`${typeName(v)} cannot be iterated over`);
  }

  function length(v) {
    if (isMapping(v)) return v.value.size;
    if (isString(v)) return countCharacters(v.value);
    return items(v).length;
  }

  function needHash(v) {
    if (isMapping(v) || (isArray(v) && !(v instanceof TupleValue))) {
      throw new TemplateError(`${typeName(v)} has no hash`);
    }
  }

  function contains(container, v) {
    if (isString(container)) {
      if (!isString(v)) throw new TemplateError(`found '${typeName(v)} in str', expected a str`);
      return bare(container.value).includes(bare(v.value));
    }
    if (isMapping(container)) {
      needHash(v);
      return isString(v) && container.value.has(v.value);
    }
    return items(container).some((item) => equal(item, v));
  }

  // A value of parsed JSON. Numbers that JavaScript would not keep as they are come as an object
  // with the key `hotset.numberKey`.
  function fromJson(value) {
    if (value === null) return new NullValue();
    if (typeof value === "string") return str(value);
    if (typeof value === "boolean") return bool(value);
    if (typeof value === "number") return int(value);
    if (Array.isArray(value)) return list(value.map(fromJson));
    const number = value[hotset.numberKey];
    if (number !== undefined) {
      return /^-?\d+$/.test(number) ? int(BigInt(number)) : new FloatValue(Number(number));
    }
    return new ObjectValue(new Map(Object.entries(value).map(([k, v]) => [k, fromJson(v)])));
  }

  Object.assign(hotset, {
    characters, isPlain, bare, IntegerValue, FloatValue, TupleValue, NullValue, UndefinedValue,
    BooleanValue, FunctionValue, NamespaceValue, KeywordArgumentsValue, TemplateError, Refusal,
    isString, isNumber, isArray, isMapping, isUndefined, truth, toNumber, str, bool, int, list,
    safeInteger, finiteFloat, typeName, text, json, equal, compare, items, length, needHash, contains,
    fromJson,
  });
})(globalThis.jinja, globalThis.hotset);
