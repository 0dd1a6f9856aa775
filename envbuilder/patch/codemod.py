"""Finds in one Python file what an old card cannot run, and what each place becomes.

Every mention of a reduced dtype, of flash attention, autocast or torch.compile is either a shape known here, with a
rewrite, or known to compute nothing (a comparison, a table of names, an import that has a fallback). Any other stops
the work: a patch that skips what it does not understand leaves a run to find out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import libcst as cst
from libcst import matchers as m
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider

from envbuilder.errors import InputError, Place
from envbuilder.patch.target import Target

# The module that the codemod adds to verl in place of flash_attn.bert_padding.
PADDING_MODULE = "verl.utils.plain_padding"
_SINGLE_ONE = "The sum of the mask is one"
_MENTIONS = re.compile(
    rb"bfloat16|float16|bf16|fp16|\.half\(|flash_attention|flash_attn|autocast|torch\.compile|import triton"
    rb"|from triton|" + _SINGLE_ONE.encode()
)
_DTYPE_KEYS = frozenset({"dtype", "torch_dtype", "param_dtype", "model_dtype", "target_dtype"})
_ATTENTION_KEYS = frozenset({"attn_implementation", "_attn_implementation"})
_LOADERS = frozenset({"from_pretrained", "from_config"})


@dataclass(frozen=True)
class Change:
    """One site: its line, what it is (a kind of ``rules.toml``), its shape, whether it runs as the module is
    imported, and the code before and after."""

    line: int
    kind: str
    shape: str
    top: bool
    before: str
    after: str


def mentions(source: bytes) -> bool:
    """Whether the file speaks of anything the codemod looks for; most files do not."""
    return _MENTIONS.search(source) is not None


def rewrite(source: bytes, target: Target, file: str, wanted: Callable[[Change], bool]) -> tuple[list[Change], bytes]:
    """All sites of a file, and the file with those changed that are ``wanted``.

    Raises InputError, with file and line, for a mention that is not understood and for a file that is not Python.
    """
    try:
        wrapper = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True)
    except cst.ParserSyntaxError as error:
        raise InputError(
            f"this is not Python: {error.message}", place=Place(file, error.raw_line), cure="Fix the file, then again."
        ) from None
    finder = _Finder(target, file, wrapper.module)
    wrapper.visit(finder)
    replaced = {id(node): new for change, node, new in finder.found if wanted(change)}
    changes = [change for change, _, _ in finder.found]
    if not replaced:
        return changes, source
    changed = wrapper.module.visit(_Replacer(replaced))
    assert isinstance(changed, cst.Module)
    return changes, changed.bytes


class _Replacer(cst.CSTTransformer):
    """Puts each new node in the place of the old one; None takes a decorator away."""

    def __init__(self, replaced: dict[int, cst.CSTNode | None]) -> None:
        super().__init__()
        self._replaced = replaced

    def on_leave(
        self, original_node: cst.CSTNodeT, updated_node: cst.CSTNodeT
    ) -> cst.CSTNodeT | cst.RemovalSentinel | cst.FlattenSentinel[cst.CSTNodeT]:
        """The replacement of ``original_node`` if there is one."""
        if id(original_node) in self._replaced:
            new = self._replaced[id(original_node)]
            return cst.RemoveFromParent() if new is None else new  # type: ignore[return-value]  # same place, other kind
        return super().on_leave(original_node, updated_node)


class _Finder(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider, ParentNodeProvider)

    def __init__(self, target: Target, file: str, module: cst.Module) -> None:
        super().__init__()
        self.found: list[tuple[Change, cst.CSTNode, cst.CSTNode | None]] = []
        self._target, self._file, self._module = target, file, module
        self._flash = not target.attention.startswith("flash")

    # What is looked at

    def visit_Attribute(self, node: cst.Attribute) -> bool | None:  # noqa: N802  # libcst's names
        """``torch.bfloat16``."""
        if m.matches(node, m.Attribute(m.Name("torch"), m.Name())) and node.attr.value in self._target.narrow:
            self._dtype(node)
        return None

    def visit_SimpleString(self, node: cst.SimpleString) -> None:  # noqa: N802
        """``"bf16"``, ``"flash_attention_2"``."""
        value = node.evaluated_value
        if value in self._target.narrow:
            assert isinstance(value, str)
            self._name(node, "dtype", _DTYPE_KEYS, self._target.named_like(value))
        elif self._flash and value in ("flash_attention_2", "flash_attention_3"):
            self._name(node, "attention", _ATTENTION_KEYS, self._target.attention)

    def visit_Call(self, node: cst.Call) -> bool | None:  # noqa: N802
        """``torch.autocast(...)``, ``torch.compile(...)``, ``x.bfloat16()``."""
        name = _last_name(node.func)
        if name == "autocast":
            return self._autocast(node)
        if not self._target.compile and m.matches(node.func, m.Attribute(m.Name("torch"), m.Name("compile"))):
            self._compile(node)
        elif isinstance(node.func, cst.Attribute) and not node.args and _method_dtype(name) in self._target.narrow:
            new = cst.parse_expression(f"_.to(torch.{self._target.dtype})")
            assert isinstance(new, cst.Call)
            assert isinstance(new.func, cst.Attribute)
            self._add("dtype", "method", node, new.with_changes(func=new.func.with_changes(value=node.func.value)))
        return None

    def visit_Decorator(self, node: cst.Decorator) -> bool | None:  # noqa: N802
        """``@torch.compile``, with or without arguments."""
        wrapped = node.decorator.func if isinstance(node.decorator, cst.Call) else node.decorator
        if not self._target.compile and m.matches(wrapped, m.Attribute(m.Name("torch"), m.Name("compile"))):
            self._add("compile", "decorator", node, None)
            return False
        return None

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool | None:  # noqa: N802
        """``from flash_attn.bert_padding import ...``."""
        module = self._code(node.module) if node.module else ""
        if module == "flash_attn.bert_padding":
            new = node.with_changes(module=_dotted(PADDING_MODULE))
            self._add("padding", "import", node, new)
        elif module.split(".")[0] in ("flash_attn", "triton") and not self._has_fallback(node):
            self._stop(node, f"an import from {module} that has no fallback")
        return False

    def visit_Import(self, node: cst.Import) -> bool | None:  # noqa: N802
        """``import flash_attn``, ``import triton``."""
        for alias in node.names:
            package = self._code(alias.name).split(".")[0]
            if package in ("flash_attn", "triton") and not self._has_fallback(node):
                self._stop(node, f"an import of {package} that has no fallback")
        return False

    def visit_Raise(self, node: cst.Raise) -> bool | None:  # noqa: N802
        """The error of ``masked_var`` for a mask with a single one."""
        if node.exc is None or _SINGLE_ONE not in self._code(node.exc):
            return None
        function = self._above(node, cst.FunctionDef)
        if not isinstance(function, cst.FunctionDef) or function.name.value != "masked_var":
            self._stop(node, "the error for a mask with a single one, outside masked_var")
        elif "variance = " not in self._code(function):
            self._stop(node, "masked_var does not compute `variance`")
        self._add("single-token", "raise", node, cst.Return(cst.Name("variance")))
        return False

    # What becomes of it

    def _dtype(self, node: cst.Attribute) -> None:
        parent = self._parent(node)
        new = node.with_changes(attr=cst.Name(self._target.dtype))
        if isinstance(parent, cst.Arg):
            call = self._parent(parent)
            keyword = parent.keyword.value if parent.keyword else None
            name = _last_name(call.func) if isinstance(call, cst.Call) else ""
            if keyword in _DTYPE_KEYS and name in _LOADERS:
                return self._add("dtype", "auto-class", node, new)
            if keyword in _DTYPE_KEYS or (keyword is None and name == "to"):
                return self._add("dtype", "argument", node, new)
        elif isinstance(parent, cst.IfExp) and node is not parent.test:
            return self._add("dtype", "branch", node, new)
        elif isinstance(parent, cst.Assign):
            return self._add("dtype", "assignment", node, new)
        elif self._asks_only(node):
            return None
        self._stop(node, f"{self._code(node)} in a place where the codemod does not know it")

    def _name(self, node: cst.SimpleString, kind: str, keys: frozenset[str], value: str) -> None:
        quote = node.quote
        new = node.with_changes(value=f"{node.prefix}{quote}{value}{quote}")
        parent = self._parent(node)
        default = "dtype-default" if kind == "dtype" else kind
        if isinstance(parent, cst.Arg):
            call = self._parent(parent)
            if parent.keyword and parent.keyword.value in keys:
                return self._add(kind, "argument", node, new)
            if isinstance(call, cst.Call) and _last_name(call.func) == "get" and len(call.args) == 2:
                first = call.args[0].value
                if isinstance(first, cst.SimpleString) and first.evaluated_value in keys:
                    return self._add(default, "default", node, new)
        elif isinstance(parent, (cst.AnnAssign, cst.Param)):
            return self._add(default, "default", node, new)
        elif self._extends_check(node, value) or self._asks_only(node):
            return None
        self._stop(node, f"{self._code(node)} in a place where the codemod does not know it")

    def _extends_check(self, node: cst.SimpleString, value: str) -> bool:
        """``assert dtype in ["bfloat16", "float16"]``: the list gets the target's dtype, once."""
        element = self._parent(node)
        allowed = self._parent(element) if isinstance(element, cst.Element) else None
        if not isinstance(allowed, (cst.List, cst.Tuple)) or self._above(node, cst.Assert) is None:
            return False
        names = [e.value.evaluated_value for e in allowed.elements if isinstance(e.value, cst.SimpleString)]
        if value not in names and element is allowed.elements[0]:
            last = cst.Element(cst.SimpleString(f'"{value}"'))
            self._add("dtype-check", "assert", allowed, allowed.with_changes(elements=[*allowed.elements, last]))
        return True

    def _autocast(self, node: cst.Call) -> bool:
        arguments = {arg.keyword.value: arg for arg in node.args if arg.keyword}
        enabled, dtype = arguments.get("enabled"), arguments.get("dtype")
        if enabled is not None and m.matches(enabled.value, m.Name("False")):
            return False
        if dtype is None:
            self._stop(node, "autocast that leaves its dtype to the device")
        if not (
            m.matches(dtype.value, m.Attribute(m.Name("torch"), m.Name()))
            and _last_name(dtype.value) in self._target.narrow
        ):
            return False  # a dtype out of the configuration, whose own default is a site
        off = dtype.with_changes(keyword=cst.Name("enabled"), value=cst.Name("False"))
        kept = [off if arg is dtype else arg for arg in node.args if arg is not enabled]
        self._add("autocast", "call", node, node.with_changes(args=kept))
        return False

    def _compile(self, node: cst.Call) -> None:
        if not node.args or node.args[0].keyword is not None:
            self._stop(node, "torch.compile without the function to compile")
        self._add("compile", "call", node, node.args[0].value)

    def _asks_only(self, node: cst.CSTNode) -> bool:
        """Whether the mention computes nothing: one side of a comparison, or a row of a table in capitals."""
        if self._above(node, cst.Comparison) is not None:
            return True
        assign = self._above(node, cst.Assign)
        if not isinstance(assign, cst.Assign):
            return False
        return all(isinstance(t.target, cst.Name) and t.target.value.isupper() for t in assign.targets)

    def _has_fallback(self, node: cst.CSTNode) -> bool:
        """Whether an import stands in a ``try``, or below a test that asks for flash attention or Triton first."""
        above: cst.CSTNode | None = node
        while above is not None:
            if isinstance(above, cst.Try):
                return True
            if isinstance(above, cst.If) and re.search(r"flash_attn.*available|HAVE_TRITON", self._code(above.test)):
                return True
            above = self._parent(above)
        return False

    # The tree

    def _add(self, kind: str, shape: str, node: cst.CSTNode, new: cst.CSTNode | None) -> None:
        change = Change(
            line=self.get_metadata(PositionProvider, node).start.line,
            kind=kind,
            shape=shape,
            top=self._above(node, cst.FunctionDef) is None,
            before=_one_line(self._code(node)),
            after=_one_line(self._code(new)) if new is not None else "",
        )
        self.found.append((change, node, new))

    def _stop(self, node: cst.CSTNode, what: str) -> NoReturn:
        line = self.get_metadata(PositionProvider, node).start.line
        raise InputError(
            f"not understood: {what}",
            place=Place(self._file, line),
            detail=self._module.code.splitlines()[line - 1].strip(),
            cure="Nothing was changed. This verl needs a new rule in envbuilder/patch; until then use 0.5.0.",
        )

    def _parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return self.get_metadata(ParentNodeProvider, node, None)

    def _above(self, node: cst.CSTNode, kind: type[cst.CSTNode]) -> cst.CSTNode | None:
        above = self._parent(node)
        while above is not None and not isinstance(above, kind):
            above = self._parent(above)
        return above

    def _code(self, node: cst.CSTNode) -> str:
        return self._module.code_for_node(node)


def _last_name(node: cst.CSTNode) -> str:
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


def _method_dtype(name: str) -> str:
    return {"half": "float16", "bfloat16": "bfloat16"}.get(name, "")


def _dotted(name: str) -> cst.BaseExpression:
    return cst.parse_expression(name)


def _one_line(code: str) -> str:
    return re.sub(r"\s+", " ", code).strip()
