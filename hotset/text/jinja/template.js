// What C++ calls: compile(), render() and where(). Results are JSON: {"text"} or {"kind", "message",
// "line"}, the line 0 where it is not known; kinds: syntax, refused, template. What is no fault of
// the template, as memory that is refused, is thrown.
"use strict";

(function (jinja, hotset) {
  const { tokenize, parse } = jinja;
  const kOptions = { lstrip_blocks: true, trim_blocks: true };
  const kOpeners = /\{[%{#]/g;

  let source;
  let tokens;
  let program;
  let interpreter;

  const lineAt = (position) => source.slice(0, position).split("\n").length;

  // Where each token begins in the source. The library does not say; but tokens come in the order
  // of the source, and those within tags stand there literally. Text counts as where the tag before
  // it ends.
  function tokenPositions() {
    let cursor = 0;
    const next = (what) => {
      const at = source.indexOf(what, cursor);
      return at < 0 ? cursor : at;
    };
    return tokens.map(({ type, value }) => {
      if (type === "Text") return cursor;
      let at = next(value);
      let end = at + value.length;
      if (type === "Comment") {
        at = next("{#");
        end = Math.max(at, source.indexOf("#}", at) + 2);
      } else if (type === "StringLiteral") {
        const rest = /["']/g;
        rest.lastIndex = cursor;
        at = rest.exec(source)?.index ?? cursor;
        for (end = at + 1; end < source.length && source[end] !== source[at]; ++end) {
          if (source[end] === "\\") ++end;
        }
        ++end;
      }
      cursor = Math.max(cursor, Math.min(end, source.length));
      return at;
    });
  }

  // The token index of every statement, by walking the statements along the tokens.
  function statementTokens() {
    const found = new Map();
    let at = 0;
    const word = () => (tokens[at]?.type === "OpenStatement" ? tokens[at + 1]?.value : undefined);
    const skipTo = (type) => {
      while (at < tokens.length && tokens[at].type !== type) ++at;
      ++at;
    };
    function walkIf(statement) {
      found.set(statement, at);
      skipTo("CloseStatement");
      walk(statement.body);
      if (word() === "elif") return walkIf(statement.alternate[0]);
      if (word() === "else") {
        skipTo("CloseStatement");
        walk(statement.alternate);
      }
      skipTo("CloseStatement");
    }
    function walk(statements) {
      for (const statement of statements) {
        const { type } = tokens[at] ?? {};
        if (type !== "OpenStatement") {
          found.set(statement, at);
          if (type === "OpenExpression") skipTo("CloseExpression");
          else ++at;
        } else if (statement.type === "If") {
          walkIf(statement);
        } else {
          found.set(statement, at);
          skipTo("CloseStatement");
          const isBlock = statement.body !== undefined && !(statement.type === "Set" && statement.value);
          if (!isBlock) continue;
          walk(statement.body);
          if (word() === "else") {
            skipTo("CloseStatement");
            walk(statement.defaultBlock);
          }
          skipTo("CloseStatement");
        }
      }
    }
    walk(program.body);
    return found;
  }

  const lineOfStatement = (statement) => {
    const token = statementTokens().get(statement);
    return token === undefined ? 0 : lineAt(tokenPositions()[token]);
  };

  // The line of a character that cannot be read: the shortest beginning of the source that fails
  // in this way ends there. What is not closed was opened last.
  function lineOfUnreadable(message) {
    const failsAlike = (n) => {
      try {
        tokenize(source.slice(0, n), kOptions);
        return false;
      } catch (error) {
        return error.message === message;
      }
    };
    if (/end of/i.test(message)) {
      return lineAt(Array.from(source.matchAll(kOpeners)).at(-1)?.index ?? source.length);
    }
    let [low, high] = [0, source.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (failsAlike(middle)) high = middle;
      else low = middle + 1;
    }
    return lineAt(Math.max(0, low - 1));
  }

  // The line of the last token that the parser has looked at.
  function lineOfUnparsable() {
    let furthest = 0;
    const watched = new Proxy(tokens, {
      get(target, key) {
        if (typeof key === "string" && /^\d+$/.test(key)) furthest = Math.max(furthest, Number(key));
        return target[key];
      },
    });
    try {
      parse(watched);
    } catch {
      // as before
    }
    if (furthest >= tokens.length) furthest = tokens.length - 1;
    return furthest < 0 ? 0 : lineAt(tokenPositions()[furthest]);
  }

  function failure(kind, error, line) {
    const message = error instanceof TypeError && kind === "syntax" ? "the template ends in a tag or block"
                    : String(error?.message ?? error);
    return JSON.stringify({ kind, message: message.toWellFormed(), line });
  }
  const isEngineFailure = (error) => !(error instanceof Error) || error instanceof InternalError;

  function read() {
    try {
      tokens = tokenize(source, kOptions);
    } catch (error) {
      if (isEngineFailure(error)) throw error;
      return failure("syntax", error, lineOfUnreadable(error.message));
    }
    try {
      program = parse(tokens);
    } catch (error) {
      if (isEngineFailure(error)) throw error;
      return failure("syntax", error, lineOfUnparsable());
    }
    return undefined;
  }

  // Without success the template before stays.
  hotset.compile = function (text) {
    const before = [source, tokens, program];
    let result = "";
    try {
      source = text;
      result = read();
    } finally {
      if (result !== undefined) [source, tokens, program] = before;
    }
    return result ?? JSON.stringify({ text: "" });
  };

  // `input`: JSON {"variables": {...}, "now": {...}}.
  hotset.render = function (input) {
    const { variables, now } = JSON.parse(input);
    const scope = hotset.globalScope(now);
    for (const [name, value] of Object.entries(variables)) {
      scope.setVariable(name, hotset.fromJson(value));
    }
    interpreter = new hotset.PythonInterpreter(scope);
    try {
      const text = interpreter.run(program).value.toWellFormed();
      interpreter = undefined;  // with all that it knows of the chat
      return JSON.stringify({ text });
    } catch (error) {
      if (isEngineFailure(error)) throw error;
      const kind = error instanceof hotset.Refusal ? "refused" : "template";
      return failure(kind, error, error.node === undefined ? 0 : lineOfStatement(error.node));
    }
  };

  // The line of the statement that was computed last; for a render that was cut off.
  hotset.where = () => String(interpreter?.node === undefined ? 0 : lineOfStatement(interpreter.node));
})(globalThis.jinja, globalThis.hotset);
