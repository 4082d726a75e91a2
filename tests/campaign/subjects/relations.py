"""Relations across features: two programs whose results are equal bit by bit, without a reference (`relations`)."""

from relations import objection_to_node, objection_to_products, related_node, related_products

from campaign import Outcome, Subject, agreed, found


def draw(seed: int) -> Outcome:
    """Of three seeds, two relate forms of a product, and one relates several GPUs to one."""
    if seed % 3:
        programs, refusals = related_products(seed)
        message, features, all_programs = objection_to_products(programs, seed), {"products"}, list(programs.values())
    else:
        node, single, refusals = related_node(seed)
        message, features, all_programs = objection_to_node(node, single, seed), {"node", *node.features}, [node.program, single]
    if message:
        return found(
            f"{message}\n" + "\n".join(f"{program.strategy!r}.program({str(program.architecture)!r})" for program in all_programs), features
        )
    return agreed(features, *all_programs, refusals=refusals)


SUBJECT = Subject(
    "relations",
    "tables that are identities or permutations, and several GPUs: equal bit by bit to plain products and to one GPU",
    draw,
    nightly=300,
    campaign=5_000,
    first=20_261_130,
    sample=2,
)
