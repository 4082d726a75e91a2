"""The mutants of the long tier (`test_mutants`) are of the code as it is: what each replaces stands there once."""

from test_mutants import HERE, MUTANTS


def test_what_mutants_replace_stands_exactly_once():
    texts = {module: (HERE / "fireiron" / module).read_text(encoding="utf-8") for module in {one.module for one in MUTANTS}}
    wrong = {mutant.name: count for mutant in MUTANTS if (count := texts[mutant.module].count(mutant.old)) != 1}
    assert not wrong, "adapt these mutants: the same fault in the code as it is"
    assert all(mutant.old != mutant.new and (HERE / mutant.nearest).is_file() for mutant in MUTANTS)
