"""An interpreter for the language of Graphene's Figure 8 that shares no code with the compiler: one thread after the other, by offsets.

It executes the lines of the figure, and raises `Unknown` for any other. Every MMA adds to its result, which is initialized to 0.
"""

import math
import re

import numpy as np

TOKENS = re.compile(r"\s+|[A-Za-z_]\w*|\d+|<<<|>>>|<-|\+=|.", re.DOTALL)


SMALLEST = """
%1:[8, 3].fp16.GL
%2:[3, 8].fp16.GL
%3:[8, 8].fp16.GL
#4:[2, 2].block
#5:[2, 2].thread
%3 <- Spec <<< #4, #5>>> (%1, %2) {
  @bid_m, @bid_n = #4.indices()
  @tid_m, @tid_n = #5.indices()
  for(k=0; k < 3; k += 1) {
    for(m=0; m < 2; m += 1) {
      for(n=0; n < 2; n += 1) {
        // Tile for thread blocks
        %6:[2, 1].[ 4, 3].fp16.GL = %1.tile([4, _])
        %7:[1, 2].[3, 4].fp16.GL = %2.tile([ _, 4])
        %8:[2, 2].[ 4, 4].fp16.GL = %3.tile([4, 4])
        %9:[ 4, 3].fp16.GL = %6[@bid_m, 0]
        %10:[3, 4].fp16.GL = %7[ 0, @bid_n]
        %11:[ 4, 4].fp16.GL = %8[@bid_m, @bid_n]

        // Tile for threads
        %12:[2, 1].[ 2, 3].fp16.GL = %9.tile([ 2, _])
        %13:[1, 2].[3, 2].fp16.GL = %10.tile([ _, 2])
        %14:[2, 2].[ 2, 2].fp16.GL = %11.tile([2, 2])
        %15:[ 2, 3].fp16.GL = %12[@tid_m, 0]
        %16:[3, 2].fp16.GL = %13[ 0, @tid_n]
        %17:[ 2, 2].fp16.GL = %14[@tid_m, @tid_n]

        // Sequential scalar computation
        %18:[].fp16.GL = %15[m, k]
        %19:[].fp16.GL = %16[k, n]
        %20:[].fp16.GL = %17[m, n]
        #21:[].block = #4.scalar()
        #22:[].thread = #5.scalar()
        %20 <- MatMul <<< #21, #22>>> (%18, %19)
      }
    }
  }
}
"""
"""The figure on 8 x 3 by 3 x 8, in four blocks of four threads."""


class Unknown(Exception):
    """A line without a meaning here."""


def row_major(sizes):
    return [math.prod(sizes[place + 1 :]) for place in range(len(sizes))]


def numbers(text):
    try:
        return [int(size) for size in text.split(",") if size.strip()]
    except ValueError:
        raise Unknown(text) from None


def matched(pattern, line):
    return re.fullmatch(pattern, line)


class Interpreter:
    """A listing, and its result for two matrices."""

    def __init__(self, text):
        lines = [line.split("//")[0].strip() for line in text.split("\n")]
        self.lines = [line for line in lines if line]
        self.tensors, self.groups, self.owners = {}, {}, {}

    def run(self, first, second):
        """The result, and which of its elements were written."""
        place = next((number for number, line in enumerate(self.lines) if "<-" in line), None)
        if place is None:
            raise Unknown("no spec")
        for line in self.lines[:place]:
            self.define(line)
        head = matched(r"%(\w+) <- Spec\s*<<<\s*#(\w+)\s*,\s*#(\w+)\s*>>>\s*\(%(\w+), %(\w+)\)\s*\{", self.lines[place])
        if head is None:
            raise Unknown(self.lines[place])
        self.result = head[1]
        (blocks, block), (threads, thread) = self.groups[head[2]], self.groups[head[3]]
        if (block, thread) != ("block", "thread"):
            raise Unknown("units")
        shape = [size for size, _ in self.tensors[self.result][2]]
        self.memory = {head[4]: first.astype(float).ravel(), head[5]: second.astype(float).ravel(), self.result: np.zeros(math.prod(shape))}
        self.written = np.zeros(math.prod(shape), bool)
        body, _ = self.body(place + 1)
        for self.block in range(math.prod(blocks)):
            for self.thread in range(math.prod(threads)):
                self.execute(body, dict(self.tensors), dict(self.groups), {})
        return self.memory[self.result].reshape(shape), self.written.reshape(shape)

    def define(self, line):
        if (tensor := matched(r"%(\w+)\s*:\s*\[([^\]:]*)\]\.fp16\.GL", line)) is not None:
            sizes = numbers(tensor[2])
            self.tensors[tensor[1]] = (tensor[1], 0, list(zip(sizes, row_major(sizes), strict=True)), None)
        elif (group := matched(r"#(\w+)\s*:\s*\[([^\]:]*)\]\.(block|thread)", line)) is not None:
            self.groups[group[1]] = (numbers(group[2]), group[3])
        else:
            raise Unknown(line)

    def body(self, place):
        items = []
        while place < len(self.lines):
            line = self.lines[place]
            if line == "}":
                return items, place + 1
            inner, place = self.body(place + 1) if line.endswith("{") else (None, place + 1)
            items.append((line, inner))
        raise Unknown("an open body")

    def execute(self, items, tensors, groups, values):
        for line, inner in items:
            if inner is not None:
                self.loop(line, inner, tensors, groups, values)
            elif (match := matched(r"@(\w+), @(\w+) = #(\w+)\.indices\(\)", line)) is not None:
                sizes, unit = groups[match[3]]
                if len(sizes) != 2:
                    raise Unknown(line)
                number = self.block if unit == "block" else self.thread
                values[match[1]], values[match[2]] = number // sizes[1] % sizes[0], number % sizes[1]
            elif (match := matched(r"%(\w+)(?:\s*:\s*(.*?))? = %(\w+)\.tile\(\[([^\]]*)\]\)", line)) is not None:
                tensors[match[1]] = self.tiled(line, match[2], tensors.get(match[3]), [one.strip() for one in match[4].split(",")])
            elif (match := matched(r"%(\w+)(?:\s*:\s*(.*?))? = %(\w+)\[([^\]]*)\]", line)) is not None:
                tensors[match[1]] = self.part(line, match[2], tensors.get(match[3]), match[4].split(","), values)
            elif (match := matched(r"#(\w+):\[\]\.(\w+) = #(\w+)\.scalar\(\)", line)) is not None:
                if match[2] != groups[match[3]][1]:
                    raise Unknown(line)
                groups[match[1]] = ([], match[2])
            else:
                self.product(line, tensors, groups)

    def loop(self, line, inner, tensors, groups, values):
        match = matched(r"for\s*\(\s*(\w+)\s*=\s*(\d+);\s*\1\s*<\s*(\d+);\s*\1\s*\+=\s*(\d+)\s*\)\s*\{", line)
        if match is None or not int(match[4]):
            raise Unknown(line)
        for number in range(*map(int, match.groups()[1:])):
            self.execute(inner, dict(tensors), dict(groups), {**values, match[1]: number})

    def tiled(self, line, shape_text, tensor, sizes):
        if tensor is None or tensor[3] is not None or len(sizes) != len(tensor[2]):
            raise Unknown(line)
        tiles, inside = [], []
        for (count, stride), text in zip(tensor[2], sizes, strict=True):
            (size,) = [count] if text == "_" else numbers(text) or [0]
            if not size or count % size:
                raise Unknown(line)
            tiles.append((count // size, stride * size))
            inside.append((size, stride))
        self.require(shape_text, [tiles, inside])
        return (*tensor[:2], tiles, inside)

    def part(self, line, shape_text, tensor, places, values):
        if tensor is None or len(places) != len(tensor[2]):
            raise Unknown(line)
        offset = tensor[1]
        for (count, stride), text in zip(tensor[2], places, strict=True):
            name = text.strip().removeprefix("@")
            index = int(name) if name.isdecimal() else values.get(name, -1)
            if not 0 <= index < count:
                raise Unknown(line)
            offset += index * stride
        inside = tensor[3] or []
        self.require(shape_text, [inside])
        return (tensor[0], offset, inside, None)

    def require(self, shape_text, shapes):
        """The written shape must equal the actual one, except for sizes of 1."""
        if shape_text is None:
            return
        if matched(r"(\[[^\]]*\]\.)+fp16\.GL", shape_text) is None:
            raise Unknown(shape_text)
        written = [[size for size in numbers(one) if size != 1] for one in re.findall(r"\[([^\]]*)\]", shape_text)]
        if written != [[size for size, _ in shape if size != 1] for shape in shapes]:
            raise Unknown(shape_text)

    def product(self, line, tensors, groups):
        match = matched(r"%(\w+) <- MatMul\s*<<<\s*#(\w+),\s*#(\w+)\s*>>>\s*\(%(\w+), %(\w+)\)", line)
        if match is None or groups.get(match[2]) != ([], "block") or groups.get(match[3]) != ([], "thread"):
            raise Unknown(line)
        views = [tensors.get(match[number]) for number in (1, 4, 5)]
        if any(one is None or one[3] is not None or math.prod(size for size, _ in one[2]) != 1 for one in views):
            raise Unknown(line)
        (target, at, *_), *factors = views
        if (
            target != self.result
            or self.result in (one[0] for one in factors)
            or self.owners.setdefault(at, (self.block, self.thread))
            != (
                self.block,
                self.thread,
            )
        ):
            raise Unknown(line)
        self.memory[target][at] += math.prod(self.memory[one[0]][one[1]] for one in factors)
        self.written[at] = True


def mutated(text, generator):
    """The text with one to three tokens or lines removed, exchanged, doubled or replaced."""
    for _ in range(generator.choice((1, 1, 1, 2, 3))):
        lines, tokens = text.split("\n"), TOKENS.findall(text)
        visible = [place for place, token in enumerate(tokens) if token.strip()]
        line, other = (generator.randrange(len(lines)) for _ in range(2))
        here, second = (generator.choice(visible) for _ in range(2))
        match generator.randrange(8):
            case 0:
                del lines[line]
            case 1:
                lines[line], lines[other] = lines[other], lines[line]
            case 2:
                lines.insert(other, lines[line])
            case 3:
                del tokens[here]
            case 4:
                tokens[here], tokens[second] = tokens[second], tokens[here]
            case 5:
                tokens[here] = tokens[second]
            case 6:
                tokens.insert(here, tokens[second])
            case 7:
                same_kind = [place for place in visible if kind_of(tokens[place]) == kind_of(tokens[here])]
                tokens[here] = tokens[generator.choice(same_kind)]
        text = "\n".join(lines) if lines != text.split("\n") else "".join(tokens)
    return text


def kind_of(token):
    return "number" if token.isdecimal() else "word" if token[0].isalpha() else token


__all__ = ["SMALLEST", "Interpreter", "Unknown", "mutated"]
