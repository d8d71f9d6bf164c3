"""The reader of PTX that other tests rely on, on lines written by hand."""

from __future__ import annotations

from tests.kernels.cuda.ptx import Early, before_wait

LINES = """
	ld.param.b64 	%rd1, [some_kernel_param_0];
	ld.param.b64 	%rd2, [some_kernel_param_1];
	ld.param.b64 	%rd3, [some_kernel_param_2];
	mul.wide.s32 	%rd4, %r1, 4;
	add.s64 	%rd5, %rd2, %rd4;
	@%p1 ld.global.b32 { %r2 }, [ %rd5 + 0 ];
	cvt.s64.s32 	%rd6, %r2;
	add.s64 	%rd7, %rd1, %rd6;
	prefetch.global.L2 [%rd7]; mov.b32 %r3, 0;
	griddepcontrol.wait;
	add.s64 	%rd8, %rd3, %rd6;
	ld.global.b32 { %r4 }, [ %rd8 + 0 ];
	st.global.b32 [ %rd8 + 0 ], { %r4 };
"""


def test_what_is_read_and_asked_is_told_by_pointer_and_nothing_behind_the_wait() -> None:
    assert before_wait(LINES, ["cache", "lane", "x"]) == Early(frozenset({"lane"}), frozenset({"cache"}), writes=False)


def test_copies_reads_and_writes_that_come_too_early_are_seen() -> None:
    early = (
        "\tcp.async.cg.shared.global [ %r9 + 0 ], [ %rd3 + 0 ], 0x10, %r8;\n\tst.global.b32 [ %rd1 + 0 ], { %r1 };\n"
    )
    found = before_wait(LINES.replace("\tmul.wide", early + "\tmul.wide"), ["cache", "lane", "x"])
    assert found.read == {"lane", "x"} and found.writes
