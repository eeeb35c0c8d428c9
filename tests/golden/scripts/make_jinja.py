"""Writes tests/golden/text/jinja.json: small templates with what transformers' Jinja environment
makes of them. Each case is `[template, text]`, or `[template, null]` where Jinja fails.

    python3 tests/golden/scripts/make_jinja.py
"""

import json
from pathlib import Path

from transformers.utils.chat_template_utils import _cached_compile_jinja_template

CONTEXT = {
    "d": {"b": 1, "a": [True, None, 1.5, "x'y"], "items": {"k": 2}, "c": "Z"},
    "s": " a b ",
    "t": "Hello, World! 123",
    "u": "Größe ß ÉÀ 字😀",
    "lines": "one\n\ntwo\r\nthree\n",
    "n": None,
    "big": 1e20,
    "i": 7,
    "f": 2.5,
    "xs": [3, 1, 2],
    "words": ["b", "A", "c", "a"],
    "people": [
        {"name": "Bo", "age": 3, "in": {"x": 1}},
        {"name": "al", "age": 1, "in": {"x": 2}},
        {"name": "Cy", "age": 3, "in": {}},
    ],
    "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": [{"type": "text", "text": "Ho"}]}],
    "empty": [],
    "html": "<a href=\"x\">'&'</a>",
}

EXPRESSIONS = """
1 + 2 * 3 ** 2 | 7 // 2 | -7 // 2 | 7 % -3 | -7 % 3 | 7 / 2 | 2 ** -1 | 7.5 // 2 | -7.5 % 2 | 1e16 | 1e-5 | 0.1 + 0.2
-f | +i | not i | not empty | - 2 ** 2 | 2 ** 3 ** 2 | (1, 2) + (3,) | [1] + [2] | [1, 2] * 2 | 'ab' * 3 | 3 * 'ab' | 'a' 'b' "c"
1 < 2 < 3 | 1 < 2 > 3 | 1 == 1.0 | 1 == true | '1' == 1 | none == none | xs == [3, 1, 2] | (1,) == [1] | d == d | 'a' < 'b' | [1, 2] < [1, 3]
1 in xs | 4 not in xs | 'b' in d | 'z' in d | 'ell' in t | 'x' in undefined_name | 'a' in ('a', 'b') | not 1 in xs
i if i > 3 else 'no' | i if i > 9 else 'no' | 'x' if empty | (1 if n else 2) + 1 | 'a' if 0 else 'b' if 0 else 'c'
n or 'x' | i and 'y' | empty or n or 0 | i and n | '' or 'a' and 'b'
1 ~ 'a' ~ none ~ true ~ 1.5 ~ [1] | undefined_name ~ 'x' | 1 ~ 2 + 3 | 'a' ~ 1 * 2
d | xs | (1,) | () | {} | {'a': 1, 2: [none]} | 'x' | [ 'x', "y'z", 'q"r', 'a\\nb\\t\\\\' ] | [u] | {'k': 'v'}['k'] | [1.0, 1e20, -0.0]
d.b | d['b'] | d['items'] | d.zz | d['zz'] | d.a[3] | d.a[-1] | d.a[9] | xs[0] | xs[-1] | xs.0 | t[0] | t[-1] | t[99] | n.x | i.x | undefined_name.x | d.zz.y
t[1:3] | t[:-3] | t[::-1] | t[::2] | t[-3:] | t[5:2] | t[10:2:-3] | u[::-1] | xs[1:] | xs[::-1] | xs[:1] | (1, 2, 3)[1:] | xs[5:] | xs[-99:99] | t[99:] | t[None:2]
s|trim | s|upper | u|upper | u|lower | t|lower | 'hello world'|title | "it's o'clock x-y"|title | 'hELLO'|capitalize | s|length | u|length | xs|length | d|length | undefined_name|length | i|length | s|string | i|string | n|string
xs|join | xs|join(', ') | words|join('-') | people|join(', ', attribute='name') | t|join('.') | d|join(',') | empty|join | undefined_name|join
xs|sort | words|sort | words|sort(case_sensitive=true) | xs|sort(reverse=true) | people|sort(attribute='age')|map(attribute='name')|join(',') | people|sort(attribute='age,name')|length | [1, 'a']|sort
xs|first | xs|last | empty|first | empty|last | t|first | t|last | xs|list | t|list | d|list | xs|reverse|list | t|reverse | xs|max | xs|min | words|min | words|max | empty|max | xs|sum | people|sum(attribute='age') | empty|sum
xs|map('string')|join | words|map('upper')|list | people|map(attribute='name')|list | people|map(attribute='zz', default='-')|list | people|map(attribute='in.x')|list | xs|map('add')|list
xs|select('odd')|list | xs|reject('odd')|list | xs|select|list | xs|select('>', 1)|list | people|selectattr('age', 'equalto', 3)|map(attribute='name')|list | people|rejectattr('age', 'equalto', 3)|list|length | people|selectattr('name')|list|length | people|selectattr('zz', 'defined')|list | people|selectattr('in.x')|list|length | words|select('in', ['a', 'b'])|list
n|map('upper')|list | n|map(attribute='x')|join | n|select|list | n|reject('odd')|list | n|selectattr('x', 'defined')|list | n|rejectattr('x')|list | false|map('upper')|list | 0|select|list | i|map('upper')|list | i|selectattr('x')|list | undefined_name|selectattr('x')|list
xs|batch(2)|list | xs|batch(2, 0)|list | xs|slice(2)|list | xs|slice(2, 0)|list | [1, 2, 1, 'a', 'A']|unique|list | people|groupby('age')|length
d|dictsort | d|items|list | people[0]|dictsort(by='value')|length | d|dictsort(reverse=true)|map('first')|list
d|tojson | d|tojson(indent=2) | d['items']|tojson(separators=(',', ':')) | d|tojson(sort_keys=true) | u|tojson | u|tojson(ensure_ascii=true) | html|tojson | n|tojson | true|tojson | 1.0|tojson | {1: 2, none: 3, true: 4, 1.5: 5}|tojson | (1, 2)|tojson | undefined_name|tojson | []|tojson(indent=2) | {}|tojson(indent=2) | [1, [2, {'a': []}]]|tojson(indent='--')
n|default('x') | undefined_name|default('x') | undefined_name|default | ''|default('x') | ''|default('x', true) | d.zz|d('y') | none|default('x', boolean=true)
lines|indent | lines|indent(2) | lines|indent(2, true) | lines|indent(2, false, true) | lines|indent('> ') | 'a'|indent(first=true) | ''|indent(first=true)
t|replace('l', 'L') | t|replace('l', 'L', 1) | t|replace('', '-') | t|replace('zz', '') | t|truncate(5) | t|truncate(8, true) | t|truncate(8, true, '') | t|truncate(99) | 'a b c'|wordcount | 'x'|center(5) ~ '|' | html|escape | html|e | 'a b/ü'|urlencode
-3|abs | (-3)|abs | (-2.5)|abs | '12'|int | '12.7'|int | 'x'|int | 'x'|int(9) | 'ff'|int(base=16) | '0xff'|int(0, 16) | 3.9|int | '2.5'|float | 'x'|float | 2.567|round(2) | 2.5|round | 3.5|round | 2.1|round(method='ceil') | 2.9|round(0, 'floor') | 7|round | true|int | none|int
'%s is %d'|format('a', 3) | '%s' % 'x' | '%5d|%-5d|%05d' % (1, 2, 3) | '%.2f %e %g' % (1.5, 12345.678, 0.00001) | '%x %X %o' % (255, 255, 8) | '%%' % () | '%(a)s' % {'a': 1} | '%r' % 'x' | '%s %s' % ('a',) | '%d' % 'x' | '%+d' % 3 | '%5.1f|' % 2.25 | '%s' % [1] | '%c' % 'a'
'{} {}'.format(1, 'a') | '{1} {0}'.format(1, 2) | '{a}'.format(a=3) | '{:>5}|{:<5}|{:^5}|{:*^7}'.format('a', 'b', 'c', 'd') | '{:05d} {:+d} {:,}'.format(42, 42, 1234567) | '{:.2f} {:.1%} {:e}'.format(1.005, 0.5, 12345.6) | '{:x} {:#x} {:b} {:o}'.format(255, 255, 5, 8) | '{{}}'.format() | '{!r}'.format('x') | '{:10.3}|'.format('abcdef') | '{'.format(1) | '{:5}|'.format(3) | '{:5}|'.format('x') | '{:g} {}'.format(0.5, 2.0) | '{:,.2f}'.format(1234567.891) | '{}'.format()
s.strip() ~ '|' | s.lstrip() ~ '|' | s.rstrip() ~ '|' | 'xxaxx'.strip('x') | 'abcba'.strip('ab') | t.upper() | t.lower() | t.title() | 'aB'.swapcase() | 'aB'.capitalize()
t.split() | s.split() | 'a,b,,c'.split(',') | 'a,b,c'.split(',', 1) | 'a,b,c'.rsplit(',', 1) | ' a  b c '.split(None, 1) | ' a  b c '.rsplit(None, 1) | ''.split() | ''.split(',') | 'abc'.split('') | 'a-b'.partition('-') | 'a'.partition('-') | 'a-b-c'.rpartition('-') | 'a'.rpartition('-') | lines.splitlines() | lines.splitlines(true)
t.startswith('Hel') | t.endswith('3') | t.startswith(('x', 'H')) | t.find('o') | t.find('zz') | t.rfind('o') | t.index('o') | t.index('zz') | t.count('l') | t.count('') | t.find('o', 5) | u.find('字') | 'ab'.replace('a', 'b') | 'aaa'.replace('a', 'b', 2) | ','.join(words) | ','.join(xs) | 'a'.ljust(3) ~ '|' | 'a'.rjust(3) | 'ab'.center(5) ~ '|' | 'abc'.center(6, '*') | '7'.zfill(3) | '-7'.zfill(4) | 'a\\tb'.expandtabs(4)
'abc'.isalpha() | 'a1'.isalnum() | '12'.isdigit() | ' '.isspace() | ''.isalpha() | 'Ab'.islower() | 'AB'.isupper() | 'Ab Cd'.istitle() | 'a_1'.isidentifier() | '½'.isnumeric() | 'prefix-x'.removeprefix('prefix-') | 'x.txt'.removesuffix('.txt') | 'é'.isascii()
d.get('b') | d.get('zz') | d.get('zz', 3) | d.keys()|list | d.values()|list | d.items()|list|length | d.copy() == d | xs.index(1) | xs.count(3) | xs.index(9) | xs.append(1) | xs.pop() | d.update({}) | d.pop('b') | xs.copy()
i is defined | zz is defined | zz is undefined | n is none | i is none | true is boolean | i is boolean | true is true | false is false | 1 is true | i is integer | f is float | true is integer | i is number | true is number | t is string | d is mapping | xs is mapping | xs is sequence | d is sequence | t is sequence | i is sequence | zz is sequence | xs is iterable | d is iterable | i is iterable | t is iterable
i is odd | i is even | i is divisibleby(7) | i is divisibleby 3 | i is eq(7) | i is ne 7 | i is gt 3 | i is lt(3) | i is ge(7) | i is le 6 | 3 is in xs | 'a' is lower | 'A' is upper | n is sameas none | 1 is sameas true | range is callable | i is callable | i is not defined | i is not none and i is not string | i is equalto 7 | i is unknown_test
range(3)|list | range(1, 4)|list | range(5, 0, -2)|list | range(0)|list | range(3)|length | range(1, 2, 0) | dict(a=1, b='x') | dict({'a': 1}, b=2) | namespace(a=1).a | dict([('a', 1)]) | range(200000)
undefined_name | undefined_name + 1 | undefined_name() | nofilter|nofilter | 'a' + 1 | 1 + 'a' | [] + () | {} + {} | none + 1 | 1 / 0 | 1 // 0 | 1 % 0 | 'a' < 1 | none < 1 | {[1]: 2} | d() | xs[1.5] | xs['a'] | 'a'.nomethod()
0x1F | 0b101 | 0o17 | 1_000 | 1.5e3 | 1e3 | 2E-2 | true and True | None is none | 'a\\x41\\u0042\\'' | "\\\\d" | '\\d' | 'a\\
b'
"""

TEMPLATES = [
    "{% for x in xs %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}{{ loop.depth }};{% endfor %}",
    "{% for x in empty %}a{% else %}none{% endfor %}|{% for x in undefined_name %}a{% else %}none{% endfor %}",
    "{% for x in xs if x > 1 %}{{ loop.index }}{{ x }},{% else %}no{% endfor %}|{% for x in xs if x > 9 %}a{% else %}no{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}|{% for k in d %}{{ k }}{% endfor %}|{% for c in t %}{{ c }}.{% endfor %}",
    "{% for a, b in [(1, 2), (3, 4)] %}{{ a }}{{ b }}{% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}",
    "{% for x in i %}{% endfor %}",
    "{% for x in n %}{% endfor %}",
    "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for x in [[1, [2, [3]]]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}@{{ loop.depth }}{% endif %}{% endfor %}",
    "{% for x in xs %}{% for y in xs %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% set a = 1 %}{% for x in xs %}{{ a }}{% set a = a + 1 %}{{ a }}{% endfor %}{{ a }}",
    "{% set a = 1 %}{% if true %}{% set a = 2 %}{% endif %}{{ a }}",
    "{% set ns = namespace(a=1, b=[]) %}{% for x in xs %}{% set ns.a = ns.a + x %}{% set ns.b = ns.b + [x] %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.zz }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c = 1, 2 %}{{ c }}{% set (e, f) = [3, 4] %}{{ e }}{{ f }}",
    "{% set a.b = 1 %}",
    "{% set d.x = 1 %}",
    "{% set x %}a{{ i }}b{% endset %}{{ x }}{{ x|length }}{% set y | upper %}abc{% endset %}{{ y }}",
    "{% with a = 1, b = i %}{{ a }}{{ b }}{% set c = 5 %}{{ c }}{% endwith %}{{ a }}{{ c }}",
    "{% filter upper %}a{{ t }}{% endfilter %}{% filter replace('a', 'b') | trim %} aa {% endfilter %}",
    "{% macro m(a, b='q', c=none) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(1, c=3) }}{{ m(b=1, a=2) }}{{ m() }}{{ m.name }}",
    "{% macro m(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, b=2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(*[1]) }}{{ m(**{'a': 2}) }}",
    "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}in{{ i }}{% endcall %}",
    "{% macro m() %}<{{ caller(1, 2) }}>{% endmacro %}{% call(a, b) m() %}{{ a }}{{ b }}{% endcall %}",
    "{% macro m(n) %}{{ n }}{% if n > 0 %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(4) }}",
    "{% set v = 1 %}{% macro m() %}{{ v }}{{ i }}{% endmacro %}{% set v = 2 %}{{ m() }}",
    "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}",
    "{% macro m(x) %}{% set y = x ~ '!' %}{{ y }}{% endmacro %}{{ m(1) }}{{ y }}{{ m(2)|upper ~ m(3) }}",
    "{% if i == 1 %}a{% elif i == 7 %}b{% else %}c{% endif %}{% if not i %}x{% elif n %}y{% endif %}{% if 1 %}{% else %}z{% endif %}",
    "{% raw %}{{ x }}{% y %}{# z #}{% endraw %}|{%- raw -%} a {%- endraw -%} b",
    "a {# comment #} b{#- c -#} d {# \n #}\ne",
    "  {% if true %}\n  a\n  {% endif %}\nb\n",
    "x\n  {%- if true %}\n  a\n  {%- endif %}\nb\n\n",
    "x  {%+ if true %}  a {% endif +%}\n b",
    "  {{ i }}\n  {{- i }}  {{ i -}}  \n c",
    "a\n\t {% set z = 1 %} \n b {% set z = 2 %}\nc",
    "{% if true -%}   a   {%- endif %}\n\n\nb",
    "\n\n{% if true %}\n\nx\n\n{% endif %}\n\n",
    "   {# c #}\n  x {# d #}\n",
    "{{ '{{' }}{{ '}}' }}{{ {'a': {'b': 1}}['a']['b'] }}{{ {'a':{}} }}",
    "{%if i%}a{%endif%}{{i}}{%-for x in xs-%}{{x}}{%-endfor-%}",
    "{% generation %}\nx\n{% endgeneration %}\ny{%- generation -%} b {%- endgeneration %} c",
    "{{ raise_exception('bad ' ~ i) }}",
    "{% block a %}x{{ i }}{% endblock %}{% block b %}y{% endblock b %}",
    "{{ messages[-1]['content'][0].text }}{{ messages[0].content if messages[0].content is string else 'list' }}",
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p['text'] }}{% endfor %}{% endif %}{% endfor %}",
    "{% for m in messages[::-1] %}{{ m.role }}{% endfor %}{% for m in messages[1:] %}{{ loop.index0 }}{% endfor %}",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
    "{% if messages[0]['role'] == 'system' %}a{% else %}b{% endif %}{% if 'tool_calls' in messages[0] and messages[0].tool_calls %}c{% endif %}",
    "{{ 1, 2 }}{{ (1) }}{{ (1,) }}",
    "{{ x if x is defined and x else 'd' }}{{ i if i is not none }}",
    "{% if i is string or i is number %}a{% endif %}{% if (i is odd) == true %}b{% endif %}",
    "{{ d.a | length if d.a is defined else 0 }}",
    "{%- set ns = namespace(found=false) -%}{%- for x in xs -%}{%- if x == 1 -%}{%- set ns.found = true -%}{%- endif -%}{%- endfor -%}{{ ns.found }}",
    "{{ 'a' ~ ('b' if i else 'c') ~ 'd' | upper }}{{ ('a' ~ 'b') | upper }}",
    "{{ -1|abs }}{{ 2 + 3|string }}",
    "{% include 'x' %}",
    "{% extends 'x' %}",
    "{% if false %}{% include 'x' %}{% endif %}ok",
    "{% unknown %}", "{% if %}", "{{ }}", "{{ 1 + }}", "{% for %}", "{{ (1 }}", "{% if 1 %}", "{{ 'a }}", "{# a", "{% endif %}", "{{ a.b. }}", "{{ f(a=) }}", "{% set = 1 %}", "{{ a b }}", "{% for x in xs %}{% endif %}", "{% set true = 1 %}",
    "{% autoescape false %}{{ html }}{% endautoescape %}",
    "{{ i }}\r\n{% if true %}\r\nx\r{% endif %}\r\ny",
]


def run(source):
    try:
        return _cached_compile_jinja_template(source).render(**CONTEXT)
    except Exception:
        return None


def main():
    cases = []
    for line in EXPRESSIONS.strip().replace("\\\n", "\x00").split("\n"):
        parts, depth, current, quote, at = [], 0, "", "", 0
        # ` | ` divides expressions; a filter has no spaces around its bar.
        for part in line.split(" | "):
            part = part.replace("\x00", "\\\n").replace("\\\\", "\\")
            cases.append("{{ " + part + " }}")
    cases += TEMPLATES
    out = Path(__file__).resolve().parent.parent / "text/jinja.json"
    rows = [json.dumps([case, run(case)], ensure_ascii=False) for case in cases]
    failing = sum(run(case) is None for case in cases)
    out.write_text(
        '{"context": ' + json.dumps(CONTEXT, ensure_ascii=False) + ',\n"cases": [\n' + ",\n".join(rows) + "\n]}\n"
    )
    print(f"{len(cases)} cases, {failing} of them fail")


main()
