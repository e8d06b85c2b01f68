"""A restart says which hosts have taken the places of others."""

from nbddp.notebook.magics.pool_verbs import moved_text


def test_a_host_in_the_place_of_another_is_named():
    assert moved_text(["n1", "n2", "n3"], ["n4", "n2", "n5"]) == (
        "node 0 is on n4 now, in the place of n1; node 2 is on n5 now, in the place of n3. "
    )


def test_hosts_as_before_are_not_told():
    assert moved_text(["n1", "n1"], ["n1", "n1"]) == ""
    assert moved_text([], []) == ""
