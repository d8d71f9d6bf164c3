"""Draft trees: the order of nodes, and what reshaping keeps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandem.tree import DraftTree


@st.composite
def trees(draw: st.DrawFn, arranged: bool = True) -> DraftTree:
    """Random trees whose scores fall along paths; siblings carry different tokens."""
    tree = DraftTree.root(7)
    for _ in range(draw(st.integers(0, 12))):
        parent = draw(st.integers(0, len(tree) - 1))
        token = draw(st.integers(0, 4))
        if tree.follow(parent, token) is None:
            tree.tokens.append(token)
            tree.parents.append(parent)
            tree.scores.append(tree.scores[parent] * draw(st.floats(0.1, 1.0)))
            tree.sources.append(draw(st.sampled_from(["local", "corpus"])))
    return tree.arranged() if arranged else tree


def paths(tree: DraftTree) -> dict[tuple[int, ...], float]:
    """Every node by the tokens of its path, with its score."""
    return {tuple(tree.tokens[i] for i in tree.path(node)): tree.scores[node] for node in range(len(tree))}


def assert_sound(tree: DraftTree) -> None:
    assert tree.is_tree and tree.parents[0] == -1 and tree.scores[0] == 1.0 and tree.sources[0] == "root"
    assert len(tree.tokens) == len(tree.parents) == len(tree.scores) == len(tree.sources)
    below = [[i for i in range(len(tree)) if node in tree.path(i)] for node in range(len(tree))]
    for node, range_ in enumerate(below):
        assert range_ == list(range(node, node + len(range_)))  # a subtree is contiguous and starts at its node
    assert all(parent < node for node, parent in enumerate(tree.parents))


def test_a_chain_is_a_line():
    chain = DraftTree.chain(5, [6, 7], [0.9, 0.5], "local")
    assert chain.is_chain and chain.depths() == [0, 1, 2] and chain.path(2) == [0, 1, 2]
    assert chain.num_drafted == 2 and chain.sources == ["root", "local", "local"]
    assert DraftTree.root(5).is_chain and DraftTree.root(5).num_drafted == 0


def test_follow_takes_the_child_that_carries_the_token():
    tree = DraftTree([1, 2, 3, 2], [-1, 0, 1, 0], [1.0, 0.5, 0.4, 0.3], ["root", "a", "a", "b"])
    assert (tree.follow(0, 2), tree.follow(0, 9), tree.follow(1, 3), tree.follow(2, 3)) == (1, None, 2, None)


@given(trees(arranged=False))
def test_arranged_is_depth_first_with_likelier_children_first(tree: DraftTree):
    arranged = tree.arranged()
    assert_sound(arranged)
    assert paths(arranged) == paths(tree)
    for node in range(len(arranged)):
        scores = [arranged.scores[child] for child in arranged.children(node)]
        assert scores == sorted(scores, reverse=True)


@given(trees(), trees())
def test_merged_holds_every_path_once_with_its_larger_score(one: DraftTree, other: DraftTree):
    merged = one.merged(other)
    assert_sound(merged)
    mine, theirs = paths(one), paths(other)
    assert len(paths(merged)) == len(merged)
    assert paths(merged) == {path: max(mine.get(path, 0.0), theirs.get(path, 0.0)) for path in mine | theirs}


@given(trees(), st.integers(1, 14), st.randoms())
def test_any_prefix_and_any_ancestor_closed_subset_is_a_tree(tree: DraftTree, length: int, random):
    prefix = tree.truncate(length)
    assert_sound(prefix)
    assert prefix.tokens == tree.tokens[:length]
    keep = sorted({node for leaf in random.sample(range(len(tree)), len(tree) // 2) for node in tree.path(leaf)} | {0})
    subset = tree.subset(keep)
    assert_sound(subset)
    assert paths(subset).items() <= paths(tree).items() and len(subset) == len(keep)
