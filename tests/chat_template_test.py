#!/usr/bin/env python3
"""hotset's chat templates against Python's jinja2, which models' authors write for.

Every template below is rendered by both for many inputs. Where jinja2 gives a text, hotset must give
the same, or, of what no model's template needs (REFUSED), an error; where it fails, hotset must fail
too. HOTSET_RENDER is the program that renders; ctest sets
it. Without jinja2 for the interpreter (Debian: python3-jinja2) the test is skipped, exit status 77.
"""
import datetime
import itertools
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import unittest

try:
    import jinja2
    import jinja2.ext
    import jinja2.nodes
    import jinja2.sandbox
except ImportError:
    # The distribution's interpreter has the distribution's package; another one may come first.
    debian = "/usr/bin/python3"
    if os.path.realpath(sys.executable) != os.path.realpath(debian) and os.path.exists(debian):
        os.execv(debian, [debian, *sys.argv])
    print(f"SKIPPED: {sys.executable} has no jinja2; scripts/setup installs python3-jinja2")
    sys.exit(77)

RENDER = os.environ.get("HOTSET_RENDER", "")
NOW = datetime.datetime(2026, 3, 7, 15, 4, 5)
SEED = 20261129


def refuse(message):
    raise jinja2.exceptions.TemplateError(message)


def to_json(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


class Generation(jinja2.ext.Extension):
    """Tags around what the assistant says, which training marks; the text is as without them."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("spoken"), [], [], body).set_lineno(line)

    def spoken(self, caller):
        return caller()


def environment():
    """jinja2 as the libraries that serve chat templates set it up."""
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation])
    made.filters["tojson"] = to_json
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = NOW.strftime
    return made


ENVIRONMENT = environment()


def expected(request):
    variables = {**request.get("variables", {}), "messages": request["messages"],
                 "add_generation_prompt": request.get("add_generation_prompt", True),
                 "bos_token": "<s>", "eos_token": "</s>"}
    for name in ("tools", "documents"):
        if name in request:
            variables[name] = request[name]
    try:
        return {"text": ENVIRONMENT.from_string(request["template"]).render(**variables)}
    except (jinja2.exceptions.TemplateError, TypeError, ValueError, KeyError, IndexError,
            AttributeError, OverflowError, ZeroDivisionError) as error:
        return {"error": str(error)}


CONVERSATIONS = [
    [],
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": "  Be brief. \n"}, {"role": "user", "content": "Hi\nthere"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\n b "},
     {"role": "user", "content": ""}],
    [{"role": "user", "content": [{"type": "text", "text": "What is "}, {"type": "image"},
                                  {"type": "text", "text": "this?"}]}],
    [{"role": "user", "content": "2+2?"},
     {"role": "assistant", "content": None, "tool_calls": [
         {"id": "c1", "type": "function",
          "function": {"name": "add", "arguments": {"a": 2, "b": 2.0, "deep": {"x": [1, None, True]}}}},
         {"id": "c2", "type": "function", "function": {"name": "noop", "arguments": {}}}]},
     {"role": "tool", "tool_call_id": "c1", "name": "add", "content": "{\"sum\": 4}"},
     {"role": "tool", "tool_call_id": "c2", "content": "done"},
     {"role": "assistant", "reasoning_content": "easy", "content": "4"},
     {"role": "user", "content": "Grüße, 你好 😀 \"quoted\" 'single' \\ back <b>&amp;</b>"}],
    [{"role": "assistant", "content": "first"}, {"role": "user", "content": "second"}],
    [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}],
]

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Weather at a place, in °C.\nDaily.",
        "parameters": {"type": "object", "required": ["place"], "properties": {
            "place": {"type": "string", "description": "Town"},
            "days": {"type": "integer", "minimum": 1, "maximum": 10.5, "default": 1},
            "units": {"type": "string", "enum": ["metric", "imperial"]},
            "items": {"type": "array", "items": {"type": ["number", "null"]}}}}}},
    {"type": "function", "function": {"name": "noop", "parameters": {"type": "object", "properties": {}}}},
]

# Templates of our own that use all that those of models use.
CHAT_TEMPLATES = {
    # Thinking that is kept for the last question only, tools as JSON lines, answers of tools in runs.
    "thinking": """
{%- macro open_turn(who) %}{{ '<|im_start|>' ~ who ~ '\\n' }}{% endmacro %}
{%- macro close_turn() %}{{ '<|im_end|>' }}{{ '\\n' }}{% endmacro %}
{%- set found = namespace(question=-1) %}
{%- for m in messages[::-1] %}
    {%- if m.role == 'user' and m.content is string and not (m.content.startswith('[auto]') and m.content.endswith('[/auto]')) %}
        {%- set found.question = messages | length - 1 - loop.index0 %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- set preface = messages | selectattr('role', 'equalto', 'system') | map(attribute='content') | join('\\n') %}
{%- if preface or tools %}
    {{- open_turn('system') }}
    {{- preface | trim }}
    {%- if tools %}
        {{- '\\n\\nYou may call:' if preface else 'You may call:' }}
        {%- for tool in tools %}
            {{- '\\n* ' ~ (tool.function | default(tool) | tojson) }}
        {%- endfor %}
    {%- endif %}
    {{- close_turn() }}
{%- endif %}
{%- for m in messages if m.role != 'system' %}
    {%- set said = m.content if m.content is string else '' %}
    {%- if m.role == 'tool' %}
        {%- if not loop.previtem or loop.previtem.role != 'tool' %}{{ open_turn('tools') }}{% endif %}
        {{- '<answer id=' ~ (m.tool_call_id | default('?') | tojson) ~ '>' ~ said ~ '</answer>' }}
        {%- if loop.nextitem is undefined or loop.nextitem.role != 'tool' %}{{ close_turn() }}{% else %}{{ '\\n' }}{% endif %}
    {%- elif m.role == 'assistant' %}
        {%- set thought = m.reasoning_content if m.reasoning_content is string else '' %}
        {%- if not thought and '</think>' in said %}
            {%- set parts = said.split('</think>', 1) %}
            {%- set thought = parts[0].split('<think>')[-1].strip('\\n') %}
            {%- set said = parts[-1].lstrip('\\n') %}
        {%- endif %}
        {{- open_turn(m.role) }}
        {%- if thought and loop.revindex0 < messages | length - found.question %}
            {{- '<think>\\n' + thought.rstrip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- said }}
        {%- for call in m.tool_calls or [] %}
            {{- '\\n' if said or not loop.first }}
            {%- set f = call.function or call %}
            {{- '{"call": "' ~ f.name ~ '", "with": ' ~ (f.arguments if f.arguments is string else f.arguments | tojson) ~ '}' }}
        {%- endfor %}
        {{- close_turn() }}
    {%- else %}
        {{- open_turn(m.role) + said + close_turn() }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- open_turn('assistant') }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}
""",
    # Schemas of tools as types, by macros that call each other and themselves.
    "types": """
{%- macro list_of(names, quote) -%}
    {%- for name in names -%}{{ quote ~ name ~ quote }}{%- if not loop.last %} | {% endif -%}{%- endfor -%}
{%- endmacro -%}
{%- macro shape(schema, depth=0) -%}
    {%- set kind = schema.type | default('any') -%}
    {%- if schema.enum -%}
        {{- list_of(schema.enum, '"') -}}
    {%- elif kind is iterable and kind is not string and kind is not mapping -%}
        {{- list_of(kind, '') -}}
    {%- elif kind == 'array' -%}
        list<{{ shape(schema['items'], depth + 1) if schema['items'] is defined else 'any' }}>
    {%- elif kind == 'object' and schema.properties -%}
        {
        {%- for key, inner in schema.properties.items() %}
            {%- if inner.description is defined %} /* {{ inner.description | replace('\\n', ' ') }} */{% endif %}
            {{- '  ' * (depth + 1) ~ key ~ ('' if key in (schema.required or []) else '?') ~ ': ' ~ shape(inner, depth + 1) }}
            {%- if inner.default is defined and inner.default is not none %} = {{ inner.default }}{% endif -%}
            {{- ';' if not loop.last -}}
        {%- endfor -%}
        }
    {%- else -%}
        {{- kind -}}
    {%- endif -%}
{%- endmacro -%}
<|start|>system<|message|>It is {{ strftime_now("%A, %d %B %Y") }}; effort: {{ reasoning_effort | default("medium", true) | upper }}.
{%- for tool in tools | default([]) %}

{% set f = tool.function -%}
{% if f.description %}# {{ f.description | indent(2) }}
{% endif -%}
{{ f.name }}: {{ shape(f.parameters) }}
{%- endfor -%}
<|end|>
{%- for m in messages -%}
    {%- if 'tool_calls' in m -%}
        {%- for call in m.tool_calls | map(attribute='function') -%}
            <|start|>{{ m.role }} to={{ call['name'] }}<|message|>{{ call.arguments | tojson(separators=(',', ':')) }}<|call|>
        {%- endfor -%}
    {%- elif m.role == 'tool' -%}
        {%- if loop.previtem is not defined -%}{{- raise_exception("a tool answers nobody") -}}{%- endif -%}
        <|start|>{{ m.name or 'tool' }}<|message|>{{ m.content | tojson }}<|end|>
    {%- elif m.content is string -%}
        <|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>
    {%- else -%}
        <|start|>{{ m.role }}<|message|>{{ m.content | map(attribute='text', default='') | join }}<|end|>
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}
""",
    # Roles that must alternate, a system message that goes into the last question, tool ids checked.
    "strict": """
{%- set first = messages | first -%}
{%- set talk = messages[1:] if first and first.role == 'system' else messages -%}
{%- set turn = namespace(expects='user') -%}
{%- for m in talk | rejectattr('role', 'in', ['tool']) | rejectattr('tool_calls', 'defined') -%}
    {%- if m['role'] != turn.expects -%}
        {{- raise_exception('message ' ~ loop.index ~ ': found ' ~ m.role ~ ', expected ' ~ turn.expects) -}}
    {%- endif -%}
    {%- set turn.expects = 'assistant' if turn.expects == 'user' else 'user' -%}
{%- endfor -%}
{%- set questions = talk | selectattr('role', 'equalto', 'user') | list -%}
{{- bos_token -}}
{%- for m in talk -%}
    {%- if m.role == 'user' -%}
        {%- if tools and m == questions[-1] -%}
            [TOOLS]
            {%- for tool in tools -%}
                {{- '{' -}}
                {%- for key, value in tool.function.items() if key != 'strict' -%}
                    {{- '"' + key + '": ' + (('"' + value + '"') if value is string else value | tojson) -}}
                    {{- ', ' if not loop.last -}}
                {%- endfor -%}
                {{- '}' -}}{{- ',' if not loop.last -}}
            {%- endfor -%}
            [/TOOLS]
        {%- endif -%}
        {{- '[Q] ' -}}
        {%- if loop.last and talk | length < messages | length -%}{{- first.content + '\\n\\n' -}}{%- endif -%}
        {{- m.content ~ ' [/Q]' -}}
    {%- elif m.tool_calls is defined -%}
        {%- for call in m.tool_calls -%}
            {%- if call.id is not defined or call.id | length != 2 -%}
                {{- raise_exception('ids of calls have two characters, found ' ~ call.id) -}}
            {%- endif -%}
            {%- set written = call.function | tojson -%}
            {{- '[CALL]' ~ written[:-1] ~ ', "id": "' ~ call.id ~ '"' ~ written[-1:] -}}
        {%- endfor -%}
        {{- eos_token -}}
    {%- elif m.role == 'assistant' -%}
        {{- ' ' + m['content'] | trim + eos_token -}}
    {%- elif m.role == 'tool' -%}
        {%- set result = m.content.content if m.content.content is defined else m.content -%}
        {{- '[RESULT]' + result | string + '#' + m.tool_call_id + '[/RESULT]' -}}
    {%- else -%}
        {{- raise_exception('nobody is a ' + m.role) -}}
    {%- endif -%}
{%- endfor -%}
""",
    # Variables with fallbacks, a date, tools as indented JSON, parts with pictures.
    "dated": """
{{- bos_token }}
{%- set offered = custom_tools if custom_tools is defined else (tools if tools is defined else none) %}
{%- if today is not defined %}
    {%- set today = strftime_now("%d %b %Y") if strftime_now is defined else "unknown" %}
{%- endif %}
{%- if messages and messages[0]['role'] == 'system' %}
    {%- set preface = messages[0]['content'] | trim %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set preface = "" %}
    {%- set rest = messages %}
{%- endif %}
{%- set header %}
Today is {{ today }}.
{% if offered is not none %}
Tools:
{% for tool in offered %}
{{ tool | tojson(indent=4) }}
{% endfor %}
{% endif %}
{% endset %}
{{- "<|header|>system<|/header|>" ~ header.strip() ~ "\\n" ~ preface ~ "<|over|>" }}
{%- for m in rest %}
    {%- if 'tool_calls' in m %}
        {%- if m.tool_calls | length > 1 %}{{ raise_exception("one call at once, please") }}{% endif %}
    {%- elif m.role in ('tool', 'ipython') %}
        {%- if m.content is mapping or m.content is iterable %}{{ m.content | tojson }}{% else %}{{ m.content }}{% endif %}
    {%- else %}
        {{- "<|header|>" + m['role'] + "<|/header|>" }}
        {%- if m.content is string %}{{ m['content'] | trim }}
        {%- else %}
            {%- for part in m.content %}{{ '<|picture|>' if part['type'] == 'image' else part['text'] }}{% endfor %}
        {%- endif %}
        {{- "<|over|>" }}
    {%- endif %}
{%- endfor %}
{{- "<|header|>assistant<|/header|>" if add_generation_prompt }}
""",
    # Text between the tags instead of strings, contents of any form, arguments as pairs of tags.
    "tagged": """
[begin]
{% macro shown(content) -%}
    {%- if content is string -%}{{ content }}
    {%- elif content is mapping -%}{{ content.text }}
    {%- elif content is iterable -%}{% for part in content %}{{ shown(part) }}{% endfor %}
    {%- else -%}{{ content }}
    {%- endif -%}
{%- endmacro %}
{% set at = namespace(user=-1) %}
{% for m in messages %}{% if m.role == 'user' %}{% set at.user = loop.index0 %}{% endif %}{% endfor %}
{% for m in messages %}
<{{ m.role }}>
{% if m.role == 'assistant' %}
{% set text = shown(m.content) %}
{% set thought = m.reasoning_content | default(text.split('</think>')[0].split('<think>')[-1] if '</think>' in text else '', true) %}
{% if loop.index0 > at.user and thought %}
  <think>{{ thought.strip() }}</think>
{% endif %}
{{ text.split('</think>')[-1].strip() }}
{% for call in m.tool_calls or [] %}
{% set call = call.function or call %}
  <call name="{{ call.name }}">
{% for key, value in call.arguments.items() %}
    <{{ key }}>{{ value if value is string else value | tojson(ensure_ascii=False) }}</{{ key }}>
{% endfor %}
  </call>
{%- endfor %}
{% elif m.role == 'tool' %}
{{- '(first)' if loop.first or messages[loop.index0 - 1].role != 'tool' else '(more)' }} {{ shown(m.content) }}
{% else %}
{{ shown(m.content) }}{{ ' (no thinking)' if enable_thinking is defined and not enable_thinking and not shown(m.content).endswith('!') }}
{% endif %}
</{{ m.role }}>
{% endfor %}
{%- if add_generation_prompt -%}
<assistant>
{%- endif -%}
""",
    # Schemas and arguments in a notation of its own: keys sorted, types in capitals, values by their kind.
    "sorted": """
{%- macro value(it, quote_keys=true) -%}
    {%- if it is string -%}{{ '<q>' + it + '<q>' }}
    {%- elif it is boolean -%}{{ 'yes' if it else 'no' }}
    {%- elif it is mapping -%}
        {{- '{' -}}
        {%- for key, inner in it | dictsort -%}
            {{- ('<q>' + key + '<q>' if quote_keys else key) ~ ':' -}}{{- value(inner, quote_keys=quote_keys) -}}{{- ',' if not loop.last -}}
        {%- endfor -%}
        {{- '}' -}}
    {%- elif it is sequence -%}
        [{%- for inner in it -%}{{- value(inner, quote_keys) -}}{%- if not loop.last -%},{%- endif -%}{%- endfor -%}]
    {%- elif it is integer or it is float -%}{{ it | string }}
    {%- else -%}{{ it }}
    {%- endif -%}
{%- endmacro -%}
{%- macro fields(properties, required) -%}
    {%- set state = namespace(is_first=true) -%}
    {%- for key, field in properties | dictsort if key not in ['description', 'nullable'] -%}
        {%- if not state.is_first -%},{%- endif -%}
        {%- set state.is_first = false -%}
        {{- key }}:{type:
        {%- if field['type'] is string -%}{{ value(field['type'] | upper) }}
        {%- elif field['type'] is sequence -%}{{ value(field['type'] | map('upper') | list) }}{%- endif -%}
        {%- if field['enum'] -%},enum:{{ value(field['enum']) }}{%- endif -%}
        {%- if field['items'] is mapping and field['items'] -%}
            ,items:{% for k, v in field['items'] | dictsort %}{{ k ~ '=' ~ value(v, false) }}{% endfor %}
        {%- endif -%}
        {{- ',must' if key in (required or []) else '' }}}
    {%- endfor -%}
{%- endmacro -%}
{%- set rest = messages -%}
{%- if tools or (messages and messages[0]['role'] in ['system', 'developer']) -%}
    {{- '<turn>system\n' -}}
    {%- if messages and messages[0]['role'] in ['system', 'developer'] -%}
        {{- messages[0]['content'] | trim -}}
        {%- set rest = messages[1:] -%}
    {%- endif -%}
    {%- for tool in tools -%}
        <tool>{{- tool['function']['name'] -}}({{- fields(tool['function']['parameters']['properties'], tool['function']['parameters']['required']) | trim -}})</tool>
    {%- endfor -%}
    {{- '</turn>\n' -}}
{%- endif -%}
{%- for m in rest -%}
    {%- set who = 'model' if m['role'] == 'assistant' else m['role'] -%}
    {{- '<turn>' + who + '\n' -}}
    {%- for call in m['tool_calls'] or [] -%}
        {{- 'call:' + call['function']['name'] + value(call['function']['arguments'], quote_keys=False) -}}
    {%- endfor -%}
    {%- if m['content'] is string -%}{{- m['content'] | trim -}}
    {%- elif m['content'] is sequence -%}
        {%- for part in m['content'] | sort(attribute='type') -%}
            {{- part['text'] | trim if part['type'] == 'text' else '\n\n<|image|>\n\n' -}}
        {%- endfor -%}
    {%- endif -%}
    {{- '</turn>\n' -}}
{%- endfor -%}
""",
    # Tags with attributes, from lists of pairs; answers of tools put to the calls before them; what was
    # thought is kept behind the last question, found backwards.
    "attributes": """
{%- macro open(tag, attributes=[]) -%}
    {{- '<|open|>' + tag -}}
    {%- for attribute in attributes -%}{{- ' ' + attribute[0] + '="' -}}{{- attribute[1] | string | replace('&', '&amp;') | replace('"', '&quot;') -}}{{- '"' -}}{%- endfor -%}
    {{- '<|sep|>' -}}
{%- endmacro -%}
{%- macro kind(it) -%}
    {%- if it is boolean -%}boolean
    {%- elif it is none -%}null
    {%- elif it is number -%}number
    {%- elif it is string -%}string
    {%- elif it is mapping -%}object
    {%- else -%}array
    {%- endif -%}
{%- endmacro -%}
{%- set state = namespace(calls=none, n_answers=0, question=-1) -%}
{%- for i in range(messages | length - 1, -1, -1) -%}
    {%- if messages[i].role == 'user' and state.question == -1 -%}{%- set state.question = i -%}{%- endif -%}
{%- endfor -%}
{%- set earlier = messages[:state.question + 1] -%}
{%- for m in messages -%}
    {%- set attributes = [('role', m.role)] -%}
    {%- if m.get('name') -%}{%- set attributes = attributes + [('name', m.name)] -%}{%- endif -%}
    {%- if m.role == 'tool' -%}
        {%- set state.n_answers = state.n_answers + 1 -%}
        {%- if state.calls is none or state.n_answers > state.calls | length -%}{{- raise_exception('nobody asked for ' + m | tojson) -}}{%- endif -%}
        {%- set attributes = attributes + [('of', state.calls[state.n_answers - 1].function.name), ('index', state.n_answers)] -%}
    {%- endif -%}
    {{- open('message', attributes) -}}
    {%- if m.role == 'assistant' -%}
        {%- set state.calls = m.get('tool_calls') -%}
        {%- set state.n_answers = 0 -%}
        {%- generation -%}
        {%- set thought = m.get('reasoning_content') or m.get('reasoning') -%}
        {%- if thought is not none and thought | string | trim and loop.index0 >= earlier | length -%}{{- '<think>' ~ thought ~ '</think>' -}}{%- endif -%}
        {{- m.get('content', '') or '' -}}
        {%- for call in m.get('tool_calls', []) -%}
            {%- for key, it in call.function.get('arguments', {}).items() -%}
                {{- open('argument', [('key', key), ('type', kind(it))]) -}}
                {{- it if it is string else it | tojson(ensure_ascii=false) -}}
            {%- endfor -%}
        {%- endfor -%}
        {%- endgeneration -%}
    {%- elif m.content is string -%}
        {{- m.content[:-1] if m.content.endswith('!') else m.content -}}
    {%- else -%}
        {{- m.content | selectattr('type', 'equalto', 'text') | map(attribute='text') | join(' ') -}}
    {%- endif -%}
    {{- '<|close|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- open('message', [('role', 'assistant')]) -}}{%- endif -%}
""",
    "call blocks": """
{% macro turn(role, end='<|end|>') %}
<|{{ role }}|>
{{ caller() }}{{ end }}
{% endmacro %}
{% macro each(list) %}
{% for x in list %}
- {{ caller(x) }}
{% endfor %}
{% endmacro %}
{% for m in messages %}
{% call turn(m.role) %}{{ m.content | string | trim }}{% endcall %}
{% if m.tool_calls %}
{% call(call) each(m.tool_calls) %}
{{ call.function.name }}({% for k, v in call.function.arguments | dictsort %}{{ k }}={{ v }}{{ ", " if not loop.last }}{% endfor %})
{% endcall %}
{% endif %}
{% endfor %}
""",
}

# One expression or two each, for the corners.
EXPRESSIONS = [
    # Values as text.
    "{{ none }}|{{ true }}|{{ 1.0 }}|{{ 0.1 + 0.2 }}|{{ 100000000000000000.0 }}|{{ -0.0 }}",
    "{{ [1, 'a', none, true, 2.50, ['b'], {'k': 'v'}, (1, 2)] }}",
    "{{ \"it's\" }}{{ [\"it's\", 'say \"x\"', 'both \\'\\\"', 'tab\\t', 'é\\u00a0'] }}",
    "{{ {'a': {'b': [1, 2]}, 'c': none} }}{{ {} }}{{ [] }}",
    "{{ 'a' ~ 1 ~ none ~ true ~ [1] ~ undefined_name }}",
    # Operators.
    "{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7 / 2 }} {{ 7.5 // 2 }} {{ 1.0 // 0.1 }} {{ -7.5 % 2 }} {{ 1 - -1 }} {{ true + 1 }}",
    "{{ 'ab' * 3 }}{{ [1, 2] * 2 }}{{ [1] + [2] }}{{ 3 * 'x' }}{{ 'x' * -1 }}",
    "{{ 1 == 1.0 }} {{ 1 == '1' }} {{ true == 1 }} {{ none == false }} {{ [1, [2]] == [1, [2]] }} {{ {'a': 1} == {'a': 1.0} }} {{ 'a' != 'b' }} {{ (1, 2) == [1, 2] }}",
    "{{ 'a' < 'b' }} {{ 'B' < 'a' }} {{ 1 < 2.5 }} {{ 2 >= 2 }}",
    "{{ 'b' in 'abc' }} {{ 2 in [1, 2] }} {{ 'k' in {'k': 1} }} {{ 'x' not in 'abc' }} {{ 1 in ['1'] }} {{ [1] in [[1]] }} {{ 3 in {} }}", "{{ [] in {} }}",
    "{{ 'x' and 0 or 'y' }} {{ not '' }} {{ [] or {} or none or 'last' }} {{ 1 and [] }}",
    "{{ 1 if false }}|{{ 'a' if 1 else 'b' if 0 else 'c' }}|{{ ('a' if 0 else 'b') ~ 'c' }}",
    "{{ 1 + 'a' }}", "{{ 'a' + 1 }}", "{{ none + 1 }}", "{{ 1 < 'a' }}", "{{ 1 / 0 }}", "{{ {} < {} }}",
    # Undefined.
    "{{ x is defined }} {{ x is undefined }} [{{ x }}] {{ x | default('d') }} {{ x | length }} {{ x or 'o' }} {{ x == y }}",
    "{{ x.y }}", "{{ x['y'] }}", "{{ messages.nothing.more }}", "{{ x() }}", "{{ x + 1 }}", "{{ {}.a.b }}",
    "{% for a in x %}never{% else %}none{% endfor %}{{ 'a' in x }}{{ x | join(',') }}{{ x | list }}",
    "{{ x | tojson }}", "{{ none.a }}", "{{ none | length }}", "{{ 3 | upper }}{{ none | trim }}",
    # Strings.
    "{{ '  a b  c '.split() }}{{ 'a,b,,c'.split(',') }}{{ 'a b c d'.split(' ', 2) }}{{ ' a  b c '.split(none, 1) }}{{ ''.split() }}{{ ''.split(',') }}",
    "{{ 'a,b,c'.rsplit(',', 1) }}{{ 'a,b'.rsplit(',') }}{{ 'a\\nb\\r\\nc\\n'.splitlines() }}",
    "[{{ ' \\n a\\t '.strip() }}][{{ 'xxaxx'.strip('x') }}][{{ '\\n\\n a '.lstrip('\\n') }}][{{ 'abcba'.rstrip('ab') }}][{{ '\\u00a0x\\u2003'.strip() }}]",
    "{{ 'Hello'.startswith('He') }}{{ 'Hello'.endswith(('x', 'lo')) }}{{ 'Hello'.startswith(('x', 'y')) }}",
    "{{ 'hello wORLD'.title() }}|{{ 'hELLO wORLD'.capitalize() }}|{{ 'aBc'.upper() }}|{{ 'aBc'.lower() }}|{{ \"it's\".title() }}",
    "{{ 'aaa'.replace('a', 'b', 2) }}{{ 'aaa'.replace('a', 'b', 0) }}{{ 'a.b'.replace('.', '$&') }}{{ 'x'.replace('y', 'z') }}",
    "{{ ', '.join(['a', 'b']) }}{{ '-'.join({'k': 1}) }}", "{{ ''.join([1]) }}", "{{ 'a'.split('') }}", "{{ 'a'.strip(1) }}", "{{ 'a'.replace('a') }}", "{{ 'a'.upper(1) }}", "{{ 'a'.split(by=1) }}",
    "{{ 'héllo😀!'[5] }}{{ 'héllo😀!'[-1] }}{{ 'héllo😀!'[1:6:2] }}{{ 'abc'[::-1] }}{{ 'abc'[5:] }}{{ 'héllo😀' | length }}{{ 'abc'[7] is defined }}",
    # Lists, mappings, slices.
    "{% set l = [0, 1, 2, 3, 4] %}{{ l[1:3] }}{{ l[:-1] }}{{ l[-2:] }}{{ l[::2] }}{{ l[::-1] }}{{ l[3:1:-1] }}{{ l[10:] }}{{ (1, 2, 3)[:2] }}{{ l[-1] }}{{ l[7] }}{{ l[:] }}",
    "{% set d = {'b': 1, 'a': 2, 'items': 'hidden'} %}{{ d.b }}{{ d['items'] }}{{ d.get('z') }}{{ d.get('z', 9) }}{{ d.get('a') }}{{ d.keys() | list }}{{ d.values() | list }}{{ d.items() | list }}",
    "{% for k, v in {'x': 1, 'y': [2]}.items() %}{{ loop.index }}{{ k }}={{ v }};{% endfor %}{% for k in {'p': 1} %}{{ k }}{% endfor %}",
    "{% for a, b in [(1, 2), [3, 4]] %}{{ a + b }},{% endfor %}{% for c in 'héy' %}{{ c }}.{% endfor %}",
    "{{ range(3) | list }}{{ range(1, 10, 4) | list }}{{ range(3, 0, -1) | list }}{{ range(0) | list }}",
    "{% for i in range(100001) %}{% endfor %}", "{{ range(1, 2, 0) }}", "{% for a, b in [[1]] %}{% endfor %}", "{% for x in 3 %}{% endfor %}",
    # Scopes.
    "{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = i + 10 %}{{ x }}{% endfor %}{{ x }}",
    "{% for i in [1, 2] %}{{ y is defined }}{% set y = 1 %}{% endfor %}{{ y is defined }}{{ i is defined }}",
    "{% set ns = namespace(n=0, l=[]) %}{% for i in range(4) %}{% set ns.n = ns.n + i %}{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.n }}{{ ns.l }}{{ ns.zz is defined }}",
    "{% if true %}{% set z = 5 %}{% endif %}{{ z }}{% set a, b = (1, 2) %}{{ a }}{{ b }}{% set t %}block {{ a }}{% set z = 6 %}{% endset %}{{ t | upper }}{{ z }}",
    "{% macro m(a, b='B', c=none) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, c=3) }}{{ m(b=2, a=0) }}{{ m() }}{{ m('x') | upper }}{{ m(1) ~ m(2) }}",
    "{% macro v() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ v(1, 2, k=3) }}{% macro w(a) %}{% endmacro %}", "{% macro w(a) %}{% endmacro %}{{ w(1, 2) }}",
    "{% macro inner() %}{{ i is defined }}{{ outer }}{% endmacro %}{% set outer = 'o' %}{% for i in [1] %}{{ inner() }}{% endfor %}",
    "{% macro fib(n) %}{% if n < 2 %}{{ n }}{% else %}{{ fib(n - 1) | int + fib(n - 2) | int }}{% endif %}{% endmacro %}{{ fib(9) }}",
    "{% macro wrap() %}<{{ caller() }}>{% endmacro %}{% call wrap() %}in{% endcall %}{% call wrap() %}{{ 1 + 1 }}{% endcall %}",
    # Loops.
    "{% for m in [1, 2, 3] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}",
    "{% for m in [1, 2, 3, 4] if m % 2 == 0 %}{{ loop.index }}{{ m }}{{ loop.previtem is defined }}{{ loop.depth }}{{ loop.depth0 }}{% else %}none{% endfor %}{% for m in [] %}x{% else %}empty{% endfor %}",
    "{% for i in range(6) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 4 %}stop{% break %}{% endif %}{{ i }}{% else %}no{% endfor %}{% for i in [1] %}{% continue %}{% else %}no{% endfor %}",
    "{% for a in [1, 2] %}{% for b in 'xy' %}{{ loop.index }}{{ a }}{{ b }}{% if b == 'x' and a == 2 %}{% break %}{% endif %}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% for x in messages | reverse %}{{ loop.index }}{% endfor %}",
    # Filters.
    "{{ [3, 1, 2] | sort }}{{ ['b', 'A', 'c'] | sort }}{{ ['b', 'A'] | sort(case_sensitive=true) }}{{ [1, 3, 2] | sort(reverse=true) }}{{ [{'n': 2}, {'n': 1}] | sort(attribute='n') }}{{ ['\uff21', '😀', 'z'] | sort }}",
    "{{ ['a', 'A', 'b', 'a'] | unique | list }}{{ [1, 2, 1] | unique | join('-') }}{{ 'abc' | reverse }}{{ [1, 2] | reverse | list }}{{ 'abc' | list }}{{ {'a': 1} | list }}",
    "{{ ['a', 'b'] | map('upper') | join(',') }}{{ [' a '] | map('trim') | list }}{{ [{'n': {'m': 1}}, {}] | map(attribute='n.m', default=0) | list }}{{ [[1, 2]] | map(attribute=1) | list }}{{ ['x'] | map('replace', 'x', 'y') | list }}",
    "{{ [1, 2, 3, 4] | select('odd') | list }}{{ [1, 2, 3] | reject('equalto', 2) | list }}{{ [0, 1, ''] | select | list }}{{ [0, 1] | reject | list }}{{ [1, 5] | select('ne', 5) | list }}{{ ['a', 1] | select('string') | list }}{{ [1, 2] | select('in', [2, 3]) | list }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='role') | list }}{{ messages | rejectattr('role', 'eq', 'user') | list | length }}{{ messages | selectattr('tool_calls') | list | length }}{{ messages | selectattr('content', 'defined') | list | length }}{{ messages | selectattr('content', 'string') | map(attribute='content') | first }}{{ messages | selectattr('role', 'in', ['user']) | list | length }}",
    "{{ 'a' | default('x') }}{{ '' | default('x', true) }}{{ none | default('x') }}{{ none | d('x', boolean=true) }}{{ zz | default }}|{{ zz.a | default('q') if zz is defined else 'no' }}",
    "{{ [1, 'b', none, 2.0] | join('+') }}{{ [1, 2] | join(d=3) }}{{ 'abc' | join('.') }}{{ [] | join(',') }}{{ [1, 2] | first }}{{ [1, 2] | last }}{{ [] | first is defined }}{{ 'xyz' | last }}",
    "{{ '42' | int + 1 }}{{ '4.9' | int }}{{ 'x' | int }}{{ 'x' | int(7) }}{{ 3.9 | int }}{{ '1.5' | float }}{{ 'x' | float }}{{ ' 5 ' | int }}{{ true | int }}{{ none | int }}{{ '1_0' | int }}{{ '1e2' | int }}{{ -3 | abs }}{{ -3.5 | abs }}",
    "[{{ ' x ' | trim }}][{{ 'xxyxx' | trim('x') }}]{{ 'aXb' | replace('X', '-') }}{{ 'a a a' | replace('a', 'b', 2) }}{{ 'hello world-wide' | title }}{{ 'hELLO' | capitalize }}{{ 'a1' | replace(1, 2) }}{{ [1,2,3] | length }}{{ {'a': 1} | count }}{{ 5 | string + 'x' }}",
    "{{ 'a\\nb\\n\\nc' | indent }}|{{ 'a\\nb' | indent(2, true) }}|{{ 'a\\n\\nb' | indent(2, blank=true) }}|{{ 'a\\n' | indent }}|",
    "{{ {'b': 1, 'A': 2} | dictsort }}{{ {'b': 1, 'a': 2} | dictsort(by='value') }}{{ {'b': 1, 'a': 2} | dictsort(reverse=true) }}{{ {'b': 1} | items | list }}",
    "{{ '<b>' | safe }}{{ 'AbC' | lower }}{{ none | selectattr('a') | list }}", "{{ 'x' | nothing }}", "{{ [1] | map('nothing') | list }}", "{{ 1 is nothing }}", "{{ none is odd }}", "{{ [[]] | unique | list }}",
    # tojson.
    "{{ messages | tojson }}", "{{ messages | tojson(indent=2) }}", "{{ messages | tojson(ensure_ascii=true) }}", "{{ messages | tojson(sort_keys=true, separators=(',', ':')) }}",
    "{{ [] | tojson(indent=2) }}{{ {} | tojson(indent=2) }}{{ [[], {}, [1]] | tojson(indent=1) }}{{ 'a\"\\\\\\n\\u0001\\u007f/<>&é😀' | tojson }}{{ 'é\\u007f😀' | tojson(ensure_ascii=true) }}",
    "{{ [1, 1.0, 1.5, -0.0, 100000000000000000000.0, 0.00001, true, none] | tojson }}{{ (1, 2) | tojson }}{{ [1.0, {'a': 2.0}] | tojson(indent=3) }}{{ 'x' | tojson | length }}{{ 3 | tojson(indent=4) }}",
    "{{ x | tojson }}", "{{ range | tojson }}",
    # Tests.
    "{{ 1 is number }}{{ true is number }}{{ true is boolean }}{{ 1 is boolean }}{{ 1.0 is float }}{{ 1 is integer }}{{ true is integer }}{{ 'x' is string }}{{ [] is iterable }}{{ 'x' is iterable }}{{ {} is iterable }}{{ 1 is iterable }}{{ (1, 2) is iterable }}",
    "{{ {} is mapping }}{{ [] is mapping }}{{ [] is sequence }}{{ 'x' is sequence }}{{ 3 is sequence }}{{ none is none }}{{ x is none }}{{ 3 is odd }}{{ 3 is even }}{{ range is callable }}{{ 'x' is callable }}{{ true is true }}{{ 1 is true }}{{ 'ab' is lower }}{{ '1' is lower }}{{ 'AB' is upper }}{{ 'A1' is upper }}{{ not x is defined }}{{ x is not defined }}",
    # White space.
    "a  {%- if true -%}  b  {%- endif -%}  c\n  {% if true %}  \n  d\n  {% endif %}\n  e {#- c -#} f\n{# g #}\nh\n",
    "  {{ 1 }}\n  {{- 2 -}}\n  {% set x = 1 %}\n\n{{ x }}\n\n", "{% for i in [1, 2] %}\n  {{ i }}\n{% endfor %}\nend\n", "{{ 'a' }}\n{{ 'b' }}\n\n", "x\n\n", "{%- if true %}\n\n y\n{%- endif %}\n",
    "{{ '}}' }}{{ '{%' }}{{ \"{{ x }}\" }}{# {{ '#' }} #}{{ {'a': {'b': 1}}['a']['b'] }}{{ {'a': {}} }}",
    # Functions.
    "{{ strftime_now('%Y-%m-%d %H:%M:%S %A %a %B %b %j %y %I %p %% %-d %-m') }}", "{{ raise_exception('no: ' ~ 1) }}", "{{ raise_exception() }}",
    "{{ bos_token }}{{ eos_token }}{{ add_generation_prompt }}", 
    "{% filter upper %}a{{ 'b' }}{% endfilter %}",
    "{% nonsense %}", "{{ 1 + }}", "{% if true %}", "{% endif %}", "{{ 'a }}", "{% for %}{% endfor %}", "{{ }}", "{{ a b }}",
]

# What jinja2 can and hotset refuses, for no model's template needs it: a template, and what the error
# names. Better no prompt than one that is not quite jinja2's.
REFUSED = [
    *((f"{{{{ x | {name}{arguments} }}}}", f"'{name}'") for name, arguments in (
        ("attr", "('a')"), ("batch", "(2) | list"), ("center", ""), ("e", ""), ("escape", ""), ("filesizeformat", ""),
        ("format", ""), ("groupby", "('a') | list"), ("max", ""), ("min", ""), ("pprint", ""), ("random", ""), ("round", ""),
        ("slice", "(2) | list"), ("striptags", ""), ("sum", ""), ("truncate", ""), ("urlencode", ""), ("urlize", ""),
        ("wordcount", ""), ("wordwrap", ""), ("xmlattr", ""))),
    *((f"{{{{ [1] | select('{name}', 1) | list }}}}", f"'{name}'") for name in (
        "divisibleby", "ge", "gt", "greaterthan", "le", "lt", "lessthan", "sameas", ">", ">=", "<", "<=", "==", "!=")),
    *((f"{{{{ 'a'.{name}() }}}}", f"'{name}'") for name in (
        "casefold", "encode", "expandtabs", "format", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "islower",
        "isnumeric", "isspace", "istitle", "isupper", "swapcase")),
    *((f"{{{{ 'a'.{name}('a') }}}}", f"'{name}'") for name in (
        "count", "find", "index", "partition", "removeprefix", "removesuffix", "rfind", "rindex", "rpartition")),
    *((f"{{{{ 'a'.{name}(3) }}}}", f"'{name}'") for name in ("center", "ljust", "rjust", "zfill")),
    ("{{ [1].index(1) }}", "'index'"), ("{{ [1].count(1) }}", "'count'"), ("{{ [1].copy() }}", "'copy'"), ("{{ {}.copy() }}", "'copy'"),
    ("{{ dict(a=1) }}", "'dict'"), ("{% set j = joiner() %}", "'joiner'"), ("{% set c = cycler(1) %}", "'cycler'"), ("{{ lipsum() }}", "'lipsum'"),
    ("{% for i in [1] %}{{ loop.cycle(1) }}{% endfor %}", "'cycle'"), ("{% for i in [1] %}{{ loop.changed(1) }}{% endfor %}", "'changed'"),
    ("{{ 2 ** 3 }}", "int ** int"), ("{{ '%s' % 'a' }}", "str % str"), ("{{ [1] < [2] }}", "list and list"), ("{{ 'a'.replace('', '-') }}", "replace"),
    ("{{ ' a b '.rsplit() }}", "rsplit"), ("{{ 'a\n'.splitlines(true) }}", "splitlines"), ("{{ 'a' | indent('>') }}", "indent"),
    ("{{ [{'a': 1}] | join(',', 'a') }}", "join"), ("{{ 'a' | int(0, 16) }}", "int"), ("{{ [1] | unique(true) | list }}", "unique"),
    ("{{ 3 | tojson(indent='\t') }}", "tojson"), ("{{ strftime_now('%F') }}", "'%F'"), ("{{ strftime_now('%c') }}", "'%c'"),
    ("{{ 9007199254740992 + 1 }}", "too large"), ("{{ 123456789 * 123456789 }}", "too large"), ("{{ x + 1 }}", "too large"), ("{{ x // 7 }}", "too large"),
    ("{{ '9007199254740993' | int }}", "too large"), ("{{ '1e999' | float }}", "too large"),
    ("{{ range }}", "function"), ("{{ namespace(a=1) }}", "namespace"), ("{% macro m() %}{% endmacro %}{{ m }}", "function"),
]


class Renderer:
    def __init__(self):
        self.process = subprocess.Popen([RENDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __call__(self, request):
        now = NOW.timetuple()
        line = {**request, "bos_token": "<s>", "eos_token": "</s>",
                "now": [*now[:6], now.tm_wday, now.tm_yday]}
        self.process.stdin.write(json.dumps(line).encode() + b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(60)


class ChatTemplateTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.render = Renderer()

    @classmethod
    def tearDownClass(cls):
        cls.render.close()

    def check(self, request, wanted_of=None):
        """`wanted_of`: the request whose text is wanted, if it is another one."""
        wanted = expected(wanted_of or request)
        found = type(self).render(request)
        shown = f"\ntemplate: {request['template']}\nmessages: {request['messages']}"
        if "text" in wanted:
            self.assertIn("text", found, f"expected {wanted['text']!r}, found {found}{shown}")
            self.assertEqual(found["text"], wanted["text"], shown)
        else:
            self.assertIn("error", found, f"expected the error {wanted['error']!r}, found {found}{shown}")
            # What JavaScript says of its own values helps nobody.
            self.assertNotRegex(found["error"], r"not a function|not iterable|cannot read|not defined|bigint", shown)
        return "text" in wanted

    def test_chat_templates(self):
        n_texts = n_errors = 0
        for name, template in CHAT_TEMPLATES.items():
            for messages, tools, thinking, prompt in itertools.product(
                    CONVERSATIONS, (None, TOOLS), (None, True, False), (True, False)):
                request = {"template": template, "messages": messages, "add_generation_prompt": prompt}
                if tools is not None:
                    request["tools"] = tools
                if thinking is not None:
                    request["variables"] = {"enable_thinking": thinking, "reasoning_effort": "high"}
                with self.subTest(name=name, messages=messages, tools=tools is not None, thinking=thinking):
                    if self.check(request):
                        n_texts += 1
                    else:
                        n_errors += 1
        print(f"chat templates: {n_texts} texts, {n_errors} refusals", file=sys.stderr)
        self.assertGreater(n_texts, 300)
        self.assertGreater(n_errors, 20)

    def test_built_in_templates(self):
        folder = pathlib.Path(__file__).parent.parent / "hotset/text/chat_templates"
        names = sorted(folder.glob("*.jinja"))
        self.assertEqual(len(names), 7)
        as_strings = json.loads(json.dumps(CONVERSATIONS[5]))
        for call in as_strings[1]["tool_calls"]:
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
        for path in names:
            template = path.read_text(encoding="utf-8")
            n_texts = 0
            for messages, tools, prompt in itertools.product([*CONVERSATIONS, as_strings], (None, TOOLS, []),
                                                             (True, False)):
                request = {"template": template, "messages": messages, "add_generation_prompt": prompt}
                if tools is not None:
                    request["tools"] = tools
                # Arguments that are JSON text are objects for the template.
                of_objects = dict(request, messages=CONVERSATIONS[5]) if messages is as_strings else None
                with self.subTest(name=path.stem, messages=messages, tools=tools, prompt=prompt):
                    n_texts += self.check(request, of_objects)
            self.assertGreater(n_texts, 40, path.stem)

    def test_expressions(self):
        for template in EXPRESSIONS:
            for messages in (CONVERSATIONS[3], CONVERSATIONS[5]):
                with self.subTest(template=template):
                    self.check({"template": template, "messages": messages})

    def test_refused(self):
        for template, what in REFUSED:
            with self.subTest(template=template):
                request = {"template": template, "messages": [], "variables": {"x": 12345678901234567890}}
                found = type(self).render(request)
                self.assertIn("error", found)
                self.assertIn(what, found["error"])
                self.assertIn("line 1: ", found["error"])

    def test_documented_names(self):
        """docs/chat.md says what there is: each name is known, and beside REFUSED nothing is left of jinja2's."""
        text = (pathlib.Path(__file__).parent.parent / "docs/chat.md").read_text(encoding="utf-8")
        rows = dict(re.findall(r"^\| ([a-z ]+) \| (`.*) \|$", text, re.MULTILINE))
        forms = {"filters": "{{ 1 | NAME }}", "tests": "{{ [1] | select('NAME') | list }}",
                 "methods of texts": "{{ ''.NAME() }}", "methods of mappings": "{{ {}.NAME() }}", "functions": "{{ NAME() }}"}
        for row, form in forms.items():
            for name in re.findall(r"`(\w+)`", rows[row]):
                found = type(self).render({"template": form.replace("NAME", name), "messages": []})
                self.assertNotRegex(found.get("error", ""), f"'{name}' is undefined|no (filter|test) '{name}'")
        refused = {what.strip("'") for _, what in REFUSED}
        for row, names in (("filters", ENVIRONMENT.filters), ("tests", ENVIRONMENT.tests)):
            known = set(re.findall(r"`(\w+)`", rows[row])) | refused | {"filter", "test", "escaped", "forceescape"}
            self.assertEqual(set(names) - known - {"map"}, set())

    def test_random_values(self):
        print(f"seed {SEED}", file=sys.stderr)
        source = random.Random(SEED)

        def text():
            return "".join(source.choice("ab \n\t'\"\\<>&%{}é你😀\u00a0\u2028.,1") for _ in range(source.randrange(8)))

        def value(depth, n_digits):
            kind = source.randrange(8 if depth > 0 else 6)
            if kind == 0:
                return source.choice((None, True, False))
            if kind == 1:
                return source.randrange(-10**source.randrange(1, n_digits), 10**source.randrange(1, n_digits))
            if kind == 2:
                floats = (1.0, -2.5, 1e-7, 123456.789, source.random(), 3e15, 1e22, 1e16)
                return source.choice(floats[:6] if n_digits < 16 else floats)
            if kind < 6:
                return text()
            if kind == 6:
                return [value(depth - 1, n_digits) for _ in range(source.randrange(4))]
            return {"k" + text(): value(depth - 1, n_digits) for _ in range(source.randrange(4))}

        templates = [
            "{{ x }}|{{ x | string }}|{{ [x] }}", "{{ x | tojson }}", "{{ x | tojson(indent=2, ensure_ascii=true) }}",
            "{{ x | tojson(sort_keys=true, separators=(', ', ':')) }}", "{{ x == y }}{{ x != y }}{{ x == x }}{{ [x] == [x] }}",
            "{{ x | length }}", "{% for a in x %}[{{ a }}]{{ loop.last }}{% endfor %}", "{{ x | trim }}|{{ x | upper }}|{{ x | title }}|{{ x | capitalize }}",
            "{{ x.split() }}{{ x.split('a') }}{{ x.strip() }}|{{ x.splitlines() }}", "{{ x[1:] }}|{{ x[:-1] }}|{{ x[::-2] }}|{{ x[0] }}",
            "{{ x ~ y }}", "{{ x in y }}", "{{ x < y if x is not iterable or x is string else '' }}",
            "{{ x and y }}", "{{ x or y }}", "{{ not x }}", "{{ x | sort }}", "{{ x | unique | list }}", "{{ x | join('-') }}", "{{ x | indent(1) }}", "{{ x | float if x is not string else '' }}",
            "{{ x is string }}{{ x is mapping }}{{ x is iterable }}{{ x is number }}{{ x is sequence }}{{ x is none }}{{ x is integer }}{{ x is float }}",
            "{{ x.items() | list }}", "{{ x | items | list }}", "{{ x | dictsort }}", "{{ x.get('ka', y) }}", "{{ x | first }}|{{ x | last }}", "{{ x | replace('a', y) if y is string }}",
            "{{ x | select('string') | list }}", "{{ x | map('string') | list }}", "{{ x | list }}", "{{ x | reverse | list }}",
        ]
        # Only with integers of less than 53 bits, and so are the results.
        computing = ["{{ x + y }}", "{{ x * 2 }}", "{{ x % 3 if x is number else 0 }}", "{{ x // 7 if x is number else '' }}", "{{ x | int }}"]
        n_texts = 0
        for template, i in itertools.product([*templates, *computing], range(40)):
            n_digits = 15 if template in computing else 19
            request = {"template": template, "messages": [],
                       "variables": {"x": value(2, n_digits), "y": value(1, n_digits)}}
            with self.subTest(i=i, variables=request["variables"]):
                n_texts += self.check(request)
        self.assertGreater(n_texts, 800)


if __name__ == "__main__":
    if not os.access(RENDER, os.X_OK):
        raise SystemExit(f"HOTSET_RENDER='{RENDER}' must be the program chat_template_render")
    print(f"jinja2 {jinja2.__version__}", file=sys.stderr)
    unittest.main()
