// The interpreter: that of @huggingface/jinja where it does as Jinja does, with Python's operators,
// scopes and text forms put in its place where it does not.
"use strict";

(function (jinja, hotset) {
  const { Environment, Interpreter } = jinja;
  const { TemplateError, isString, isNumber, isArray, isUndefined, truth, toNumber, str,
          bool, int, list, typeName, text, equal, compare, items, contains } = hotset;
  const kMaxRange = 100000;  // as Jinja's sandbox

  // How a template leaves a loop's body.
  function control(type) {
    try {
      new Interpreter(new Environment()).evaluate({ type }, undefined);
    } catch (error) {
      return error.constructor;
    }
  }
  const BreakControl = control("Break");
  const ContinueControl = control("Continue");

  // The library's own recursion takes a failure in a deep scope for a missing variable.
  Environment.prototype.lookupVariable = function (name) {
    for (let scope = this; scope; scope = scope.parent) {
      const found = scope.variables.get(name);
      if (found !== undefined) return found;
    }
    return new hotset.UndefinedValue();
  };

  // Python's rest has the sign of the divisor.
  const rest = (x, y) => (x % y !== 0 && (x % y < 0) !== (y < 0) ? (x % y) + y : x % y);
  const kArithmetic = {
    "+": (x, y) => x + y,
    "-": (x, y) => x - y,
    "*": (x, y) => x * y,
    "/": (x, y) => x / y,
    "//": (x, y) => Math.round((x - rest(x, y)) / y),
    "%": rest,
  };

  function numeric(operator, a, b) {
    const [x, y] = [a, b].map((v) => hotset.numberArgument(v, 0, operator));
    const result = kArithmetic[operator](x, y);
    const isFloat = operator === "/" || [a, b].some((v) => v instanceof hotset.FloatValue);
    return isFloat ? hotset.finiteFloat(result) : hotset.safeInteger(result);
  }

  function repeated(v, n) {
    const count = Math.max(0, n);
    if (isString(v)) return str(v.value.repeat(count));
    const all = [];
    for (let i = 0; i < count; ++i) all.push(...v.value);
    return list(all);
  }

  function arithmetic(operator, a, b) {
    if (isNumber(a) && isNumber(b) && operator in kArithmetic) return numeric(operator, a, b);
    if (operator === "+" && isString(a) && isString(b)) return str(a.value + b.value);
    if (operator === "+" && isArray(a) && isArray(b)) return list(a.value.concat(b.value));
    if (operator === "*") {
      for (const [v, n] of [[a, b], [b, a]]) {
        if ((isString(v) || isArray(v)) && n instanceof hotset.IntegerValue) return repeated(v, Number(n.value));
      }
    }
    throw new TemplateError(`found ${typeName(a)} ${operator} ${typeName(b)}, which have no such operation`);
  }

  const kComparisons = {
    "==": equal,
    "!=": (a, b) => !equal(a, b),
    "<": (a, b) => compare(a, b) < 0,
    "<=": (a, b) => compare(a, b) <= 0,
    ">": (a, b) => compare(a, b) > 0,
    ">=": (a, b) => compare(a, b) >= 0,
    in: (a, b) => contains(b, a),
    "not in": (a, b) => !contains(b, a),
  };

  class PythonInterpreter extends Interpreter {
    node = undefined;  // statement that is being computed

    evaluateBinaryExpression(node, scope) {
      const operator = node.operator.value;
      const left = this.evaluate(node.left, scope);
      if (operator === "and") return truth(left) ? this.evaluate(node.right, scope) : left;
      if (operator === "or") return truth(left) ? left : this.evaluate(node.right, scope);
      const right = this.evaluate(node.right, scope);
      if (operator in kComparisons) return bool(kComparisons[operator](left, right));
      if (operator === "~") return str(text(left) + text(right));
      return arithmetic(operator, left, right);
    }

    applyFilter(operand, filter, scope) {
      if (filter.type === "Identifier") return hotset.applyFilter(filter.value, operand, [], new Map());
      const [args, kwargs] = this.evaluateArguments(filter.args, scope);
      return hotset.applyFilter(filter.callee.value, operand, args, kwargs);
    }

    evaluateTestExpression(node, scope) {
      const passes = hotset.test(node.test.value, this.evaluate(node.operand, scope), []);
      return bool(passes !== node.negate);
    }

    evaluateMemberExpression(node, scope) {
      const object = this.evaluate(node.object, scope);
      const name = (n) => (n.type === "Identifier" ? `'${n.value}'` : "the value");
      if (isUndefined(object)) throw new TemplateError(`${name(node.object)} is undefined`);
      const property = node.property;
      if (node.computed && property.type === "SliceExpression") {
        return this.slice(object, property, scope);
      }
      let found;
      if (node.computed) {
        const key = this.evaluate(property, scope);
        found = hotset.item(object, key) ?? (isString(key) ? hotset.method(object, key.value) : undefined);
      } else {
        const key = property.type === "IntegerLiteral" ? int(property.value) : str(property.value);
        // Methods hide the items of a mapping, as in Python.
        found = (isString(key) ? hotset.method(object, key.value) : undefined) ?? hotset.item(object, key);
      }
      return found ?? new hotset.UndefinedValue();
    }

    slice(object, node, scope) {
      if (!isString(object) && !isArray(object)) throw new TemplateError(`${typeName(object)} cannot be sliced`);
      const isWide = isString(object) && !hotset.isPlain(object.value);
      const all = isWide ? hotset.characters(object.value) : object.value;
      const bound = (n) => {
        const v = n === undefined ? new hotset.NullValue() : this.evaluate(n, scope);
        if (v instanceof hotset.NullValue) return undefined;
        if (!isNumber(v) || v instanceof hotset.FloatValue) throw new TemplateError(`found ${typeName(v)} in a slice, expected an int`);
        return Number(toNumber(v));
      };
      const step = bound(node.step) ?? 1;
      if (step === 0) throw new TemplateError("found a slice with a step of 0");
      const [low, high] = step > 0 ? [0, all.length] : [-1, all.length - 1];
      const place = (n, missing) =>
        n === undefined ? missing : Math.min(Math.max(n < 0 ? n + all.length : n, low), high);
      const begin = place(bound(node.start), step > 0 ? low : high);
      const end = place(bound(node.stop), step > 0 ? high : low);
      if (typeof all === "string" && step === 1) return str(all.slice(begin, Math.max(begin, end)));
      const taken = [];
      for (let i = begin; step > 0 ? i < end : i > end; i += step) taken.push(all[i]);
      if (isString(object)) return str(taken.join(""));
      return object instanceof hotset.TupleValue ? new hotset.TupleValue(taken) : list(taken);
    }

    evaluateCallExpression(node, scope) {
      const callee = this.evaluate(node.callee, scope);
      if (callee.type !== "FunctionValue") {
        const property = node.callee.property ?? node.callee;
        throw new TemplateError(`'${property.value ?? "value"}' is ${typeName(callee)}, expected a function`);
      }
      const [args, kwargs] = this.evaluateArguments(node.args, scope);
      if (kwargs.size > 0) args.push(new hotset.KeywordArgumentsValue(kwargs));
      return callee.value(args, scope);
    }

    evaluateBlock(statements, scope) {
      let out = "";
      for (const statement of statements) {
        this.node = statement;
        try {
          const value = this.evaluate(statement, scope);
          // Statements that are not expressions give None, which a {{ none }} writes.
          if (!(value instanceof hotset.NullValue) || !kSilent.has(statement.type)) out += text(value);
        } catch (error) {
          if (error instanceof BreakControl || error instanceof ContinueControl) {
            error.text = out + (error.text ?? "");
          } else if (error instanceof Error) {
            error.node ??= statement;
          }
          throw error;
        }
      }
      return str(out);
    }

    bindTarget(target, value, scope) {
      if (target.type === "Identifier") {
        scope.setVariable(target.value, value);
        return;
      }
      const values = items(value);
      if (values.length !== target.value.length) {
        throw new TemplateError(`found ${values.length} values to unpack, expected ${target.value.length}`);
      }
      target.value.forEach((name, i) => this.bindTarget(name, values[i], scope));
    }

    evaluateFor(node, scope) {
      const select = node.iterable.type === "SelectExpression" ? node.iterable : undefined;
      let values = items(this.evaluate(select ? select.lhs : node.iterable, scope));
      const inner = (value) => {
        const made = new Environment(scope);
        this.bindTarget(node.loopvar, value, made);
        return made;
      };
      if (select) values = values.filter((value) => truth(this.evaluate(select.test, inner(value))));
      let out = "";
      let completed = false;  // an iteration, without `continue`: then there is no `else`
      for (let i = 0; i < values.length; ++i) {
        const made = inner(values[i]);
        made.setVariable("loop", this.loopValue(values, i));
        try {
          out += this.evaluateBlock(node.body, made).value;
          completed = true;
        } catch (error) {
          if (!(error instanceof BreakControl || error instanceof ContinueControl)) throw error;
          out += error.text;
          if (error instanceof BreakControl) break;
        }
      }
      if (!completed) out += this.evaluateBlock(node.defaultBlock, new Environment(scope)).value;
      return str(out);
    }

    loopValue(values, i) {
      return new hotset.NamespaceValue(new Map([
        ["index", int(i + 1)],
        ["index0", int(i)],
        ["revindex", int(values.length - i)],
        ["revindex0", int(values.length - i - 1)],
        ["first", bool(i === 0)],
        ["last", bool(i === values.length - 1)],
        ["length", int(values.length)],
        ["previtem", values[i - 1]],
        ["nextitem", values[i + 1]],
        ["depth", int(1)],
        ["depth0", int(0)],
      ]));
    }

    // The text of {% set x %} is made in a scope of its own.
    evaluateSet(node, scope) {
      if (node.value) return super.evaluateSet(node, scope);
      const text = this.evaluateBlock(node.body, new Environment(scope));
      return super.evaluateSet({ ...node, value: { type: "StringLiteral", value: text.value } }, scope);
    }

    bindMacroArguments(name, parameters, special, args, scope) {
      super.bindMacroArguments(name, parameters, special, args, scope);
      const rest = scope.variables.get("varargs");
      if (special.has("varargs")) scope.setVariable("varargs", new hotset.TupleValue(rest.value));
    }

    // A macro sees what is visible where it is defined, not where it is called.
    evaluateMacro(node, scope) {
      super.evaluateMacro(node, scope);
      const macro = scope.variables.get(node.name.value);
      const call = macro.value;
      macro.value = (args, calledFrom) => {
        const outer = new Environment(scope);
        const caller = calledFrom?.variables.get("caller");
        if (caller !== undefined) outer.setVariable("caller", caller);
        return call(args, outer);
      };
      return new hotset.NullValue();
    }
  }
  const kSilent = new Set(["Set", "Macro", "Comment", "If", "For", "CallStatement", "FilterStatement"]);

  function range(args) {
    const numbers = args.map((v) => hotset.numberArgument(v, undefined, "range"));
    const [start, stop, step = 1] = numbers.length < 2 ? [0, ...numbers] : numbers;
    if (step === 0) throw new TemplateError("range: found a step of 0");
    const n = Math.max(0, Math.ceil((stop - start) / step));
    if (n > kMaxRange) throw new TemplateError(`range: found ${n} numbers, expected at most ${kMaxRange}`);
    return list(Array.from({ length: n }, (_, i) => int(start + i * step)));
  }

  const kDays = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
  const kMonths = ["January", "February", "March", "April", "May", "June", "July", "August",
                   "September", "October", "November", "December"];

  // strftime() in the C locale. `now`: year, month and day from 1, hour, minute, second, weekday
  // from 0 for Sunday, day of the year from 1.
  function formatTime(format, now) {
    const two = (n) => String(n).padStart(2, "0");
    const month = kMonths[now.month - 1];
    const day = kDays[now.weekday];
    const directives = {
      Y: String(now.year), y: two(now.year % 100), m: two(now.month), d: two(now.day), B: month,
      b: month.slice(0, 3), A: day, a: day.slice(0, 3), H: two(now.hour), I: two(now.hour % 12 || 12),
      M: two(now.minute), S: two(now.second), p: now.hour < 12 ? "AM" : "PM",
      j: String(now.yearday).padStart(3, "0"), "%": "%",
    };
    return format.replace(/%(-?)([^]?)/g, (whole, minus, letter) => {
      const value = directives[letter];
      if (value === undefined) throw new TemplateError(`strftime_now: found '${whole}', which is not supported`);
      return minus ? value.replace(/^0+(?=\d)/, "") : value;
    });
  }

  function globalScope(now) {
    const scope = new Environment();
    const define = (name, call) => scope.setVariable(name, new hotset.FunctionValue(call));
    for (const [name, value] of [["true", true], ["false", false], ["none", null]]) {
      scope.setVariable(name, hotset.fromJson(value));
      scope.setVariable(name[0].toUpperCase() + name.slice(1), hotset.fromJson(value));
    }
    define("range", range);
    define("raise_exception", (args) => {
      throw new hotset.Refusal(args[0] === undefined ? "" : text(args[0]));
    });
    define("strftime_now", (args) => str(formatTime(hotset.textArgument(args[0], "strftime_now"), now)));
    return scope;
  }

  Object.assign(hotset, { PythonInterpreter, globalScope });
})(globalThis.jinja, globalThis.hotset);
