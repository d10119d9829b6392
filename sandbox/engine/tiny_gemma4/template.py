"""The chat template: Gemma 4's prompt format, followed by the start of the script that the question selects."""

from __future__ import annotations

import json

from tiny_gemma4.script import PLAIN, RESULTS, SCRIPTS, THINK, TOOL, TOOLS

# turn -> question -> [start of the script, texts that the tools' results must contain]
CHOICES = {
    turn: {script.ask: [script.start, list(script.needs)] for script in SCRIPTS if script.ask and script.turn in turns}
    for turn, turns in ((PLAIN, (PLAIN,)), (TOOLS, (TOOLS,)), (RESULTS, (PLAIN, RESULTS)))
}

FORM = r"""
{%- macro text_of(content) -%}
  {%- if content is string -%}{{ content }}
  {%- else -%}{%- for part in content or [] if part['type'] == 'text' -%}{{ part['text'] }}{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{%- set seen = namespace(system='', question='', results='') -%}
{%- for m in messages -%}
  {%- if m['role'] in ['system', 'developer'] -%}{%- set seen.system = text_of(m['content']) -%}
  {%- elif m['role'] == 'user' -%}{%- set seen.question = text_of(m['content']) | trim -%}
  {%- elif m['role'] == 'tool' -%}{%- set seen.results = seen.results ~ text_of(m['content']) -%}{%- endif -%}
{%- endfor -%}
{{- bos_token -}}
{%- if seen.system or tools or enable_thinking -%}
  {{- '<|turn>system\n' -}}{%- if enable_thinking -%}{{- '<|think|>' -}}{%- endif -%}{{- seen.system -}}
  {%- for tool in tools or [] -%}
    {{- '<|tool>declaration:' ~ tool['function']['name'] ~ (tool['function'] | tojson) ~ '<tool|>' -}}
  {%- endfor -%}
  {{- '<turn|>\n' -}}
{%- endif -%}
{%- for m in messages if m['role'] not in ['system', 'developer'] -%}
  {{- '<|turn>' ~ {'assistant': 'model'}.get(m['role'], m['role']) ~ '\n' -}}
  {%- for call in m.get('tool_calls') or [] -%}
    {%- set arguments = call['function']['arguments'] -%}
    {{- '<|tool_call>call:' ~ call['function']['name'] -}}
    {{- (arguments if arguments is string else arguments | tojson) ~ '<tool_call|>' -}}
  {%- endfor -%}
  {%- if m['role'] == 'tool' -%}{{- '<|tool_response>' ~ text_of(m['content']) ~ '<tool_response|>' -}}
  {%- else -%}{{- text_of(m.get('content')) -}}{%- endif -%}
  {{- '<turn|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|turn>model\n' -}}
  {%- if enable_thinking -%}{{- 'THINK' -}}
  {%- else -%}
    {#- as Gemma 4's own template: an empty thought channel when thinking is off. Without it the engine's reasoning
        parser takes the reply for a thought and applies no grammar. -#}
    {{- '<|channel>thought\n<channel|>' -}}
    {%- set turn = 'results' if messages[-1]['role'] == 'tool' else 'tools' if tools else 'plain' -%}
    {%- set choice = CHOICES[turn].get(seen.question, ['TOOL' if turn == 'tools' else '', []]) -%}
    {%- if choice[1] | reject('in', seen.results) | list | length == 0 -%}{{- choice[0] -}}{%- endif -%}
  {%- endif -%}
{%- endif -%}
"""
TEMPLATE = (
    FORM.strip().replace("CHOICES", json.dumps(CHOICES)).replace("'THINK'", repr(THINK)).replace("'TOOL'", repr(TOOL))
)
