"""Templates that mean no good: they are foreign code, and get at nothing but what they are given."""

from __future__ import annotations

import pytest

from tandem.errors import RequestError
from tandem.runtime.chat import ChatTemplate

USER = [{"role": "user", "content": "Hi"}]
REFUSED = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__.__base__ }}",
    "{{ (''|attr('__class__')).mro() }}",
    "{{ messages|map(attribute='__class__')|list|map(attribute='__init__')|list }}",
    "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "{{ '{x.__class__.__mro__}'.format_map({'x': messages}) }}",
    "{{ raise_exception.__globals__['__builtins__'] }}",
    "{{ strftime_now.__globals__.datetime.sys.modules }}",
    "{{ strftime_now.__code__.co_consts }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ lipsum.__globals__['os'] }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context.environment.loader.x }}",
    "{{ joiner.__call__.__func__.__globals__ }}",
    "{{ (1).__class__.__bases__[0].__subclasses__() }}",
    "{% import 'os' as os %}{{ os.environ }}",
    "{% from 'subprocess' import run %}",
    "{% include '/etc/passwd' %}",
    "{% extends '/etc/hostname' %}",
    "{{ open('/etc/passwd').read() }}",
    "{{ __import__('os') }}",
    "{{ eval('1') }}",
    "{% set x = messages.append(1) %}",
    "{% set x = messages[0].update({'role': 'system'}) %}",
    "{% set x = messages.clear() %}",
    "{% set x = messages[0].pop('content') %}",
    "{% for i in range(10 ** 9) %}x{% endfor %}",
    "{{ range(10 ** 18)|list }}",
    "{{ 1 // 0 }}",
    "{{ messages[99].content }}",
    "{% for",
]


@pytest.mark.parametrize("source", REFUSED)
def test_a_template_gets_at_nothing(source: str) -> None:
    """An error of the request, whose words hold nothing that it was after."""
    with pytest.raises(RequestError) as refused:
        ChatTemplate(source, {"bos_token": "<s>"}).render(USER)
    assert (refused.value.status, refused.value.param) == (400, "messages")
    assert not any(word in str(refused.value) for word in ("<class", "root:", "/bin", "<module", "0x"))


def test_what_a_client_sends_is_no_template() -> None:
    """Texts and variables are data: markers in them stay as they are."""
    source = "{{ messages[0].content }}|{{ extra }}|{{ deep.list[0] }}"
    text = "{{ 7 * 7 }}{% include '/etc/passwd' %}{{ self.__init__ }}"
    wanted = f"{text}|{text}|{text}"
    given = {"extra": text, "deep": {"list": [text]}}
    assert ChatTemplate(source).render([{"role": "user", "content": text}], variables=given) == wanted


def test_a_template_leaves_what_it_is_given_as_it_was() -> None:
    """One request's template has no way to change what another one sees."""
    messages = [{"role": "user", "content": "Hi"}]
    template = ChatTemplate("{% set ns = namespace(seen=0) %}{% set ns.seen = ns.seen + 1 %}{{ ns.seen }}")
    assert [template.render(messages) for _ in range(3)] == ["1", "1", "1"]
    assert messages == [{"role": "user", "content": "Hi"}]
