# The tools of GEM's registry 1, sha256 c01bd2251f2708efb202474583fbb5a17a562da97eab7d827c16b676df2f1af0. Written by `gem types python`: change the registry instead.

# pyright: reportUnusedImport=false
from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, Mapping, NoReturn, Optional, TypeAlias, TypeVar, overload

import gem_handlers
from gem_handlers import Child

if TYPE_CHECKING:
    from typing_extensions import NotRequired, TypedDict  # every type checker includes this module

    T = TypeVar("T")

    class Decision(dict[str, Any], Generic[T]):
        """The decision on a call whose output has the type T."""
else:
    class TypedDict(dict):  # at run time, the values are plain dicts
        def __init_subclass__(cls, **_): pass


# shop.pay


class ShopPayInput(TypedDict):
    amount: float
    order_id: int


class ShopPayOutput(TypedDict):
    payment: str


# shop.refund


class ShopRefundInput(TypedDict):
    amount: float
    order_id: int


class ShopRefundOutput(TypedDict):
    payment: str
    refunded: float


# wait.answer


class WaitAnswerInputSchemaProperties(TypedDict):
    description: NotRequired[str]
    enum: NotRequired[list[str | float | bool]]
    maxLength: NotRequired[int]
    maximum: NotRequired[float]
    minLength: NotRequired[int]
    minimum: NotRequired[float]
    title: NotRequired[str]
    type: Literal["string", "number", "integer", "boolean"]


class WaitAnswerInputSchema(TypedDict):
    description: NotRequired[str]
    properties: dict[str, WaitAnswerInputSchemaProperties]
    required: NotRequired[list[str]]
    title: NotRequired[str]
    type: Literal["object"]


class WaitAnswerInput(TypedDict):
    by: NotRequired[list[str]]
    """Who may answer: owner (who made the call; the default), user:SUBJECT, role:ROLE, service."""
    others: NotRequired[bool]
    """Whoever made the call, or one above it, may not answer. The default is false."""
    schema: NotRequired[WaitAnswerInputSchemaProperties | WaitAnswerInputSchema]
    """What the answer must be: text, a number, a truth value, or an object of such fields."""
    text: str
    """The question."""
    until: NotRequired[str]
    """The time after which it takes no answer, with its zone: 2027-01-31T15:04:05Z."""


class WaitAnswerOutput(TypedDict):
    answer: Any
    at: str
    by: str
    """Who answered: the sub of a token, service_role, or a role of Postgres."""


# wait.approval


class WaitApprovalInputBefore(TypedDict, extra_items='Any'):
    at: str
    """When it ended."""
    error_code: NotRequired[str]
    status: str
    tool: str


class WaitApprovalInputRules(TypedDict, extra_items='Any'):
    message: NotRequired[str]
    name: str


class WaitApprovalInput(TypedDict):
    before: NotRequired[list[WaitApprovalInputBefore]]
    """Earlier calls of the session."""
    by: list[str]
    """Who may decide: user:SUBJECT, role:ROLE."""
    call_id: NotRequired[str]
    """The call that waits for it, where a rule asks."""
    digest: str
    """The sha256 of what is approved."""
    input: dict[str, Any]
    """Its input."""
    others: NotRequired[bool]
    """Whoever made the call, or one above it, may not decide. The default is true."""
    rules: NotRequired[list[WaitApprovalInputRules]]
    """The rules that ask."""
    text: NotRequired[str]
    """What it is for."""
    tool: str
    """The tool of the call that is to be approved."""
    until: NotRequired[str]
    """The time after which it takes no answer, with its zone: 2027-01-31T15:04:05Z."""


class WaitApprovalOutput(TypedDict):
    approved: bool
    at: NotRequired[str]
    by: NotRequired[str]
    """Who answered: the sub of a token, service_role, or a role of Postgres."""
    digest: str
    reason: NotRequired[str]
    """As given; expired, without `by`, if nobody decided in time."""


class DurableCall(gem_handlers.DurableCall):
    """The type of a durable handler's call, with methods that are typed for each tool."""
    if TYPE_CHECKING:
        @overload
        def start(self, name: str, tool: Literal["shop.pay"], input: ShopPayInput) -> Child[ShopPayOutput]:
            """Pays money back."""
        @overload
        def start(self, name: str, tool: Literal["shop.refund"], input: ShopRefundInput) -> Child[ShopRefundOutput]:
            """Refunds an order, once. A manager approves large amounts."""
        @overload
        def start(self, name: str, tool: Literal["wait.answer"], input: WaitAnswerInput) -> Child[WaitAnswerOutput]:
            """Asks a person, and waits for the answer, for as long as it takes."""
        @overload
        def start(self, name: str, tool: Literal["wait.approval"], input: WaitApprovalInput) -> Child[WaitApprovalOutput]:
            """Asks people whether a call may be made, and waits for one who decides."""
        def start(self, name: str, tool: str, input: Mapping[str, Any], **more: Any) -> Child[Any]: ...
        @overload
        async def run(self, name: str, tool: Literal["shop.pay"], input: ShopPayInput) -> ShopPayOutput:
            """Pays money back."""
        @overload
        async def run(self, name: str, tool: Literal["shop.refund"], input: ShopRefundInput) -> ShopRefundOutput:
            """Refunds an order, once. A manager approves large amounts."""
        @overload
        async def run(self, name: str, tool: Literal["wait.answer"], input: WaitAnswerInput) -> WaitAnswerOutput:
            """Asks a person, and waits for the answer, for as long as it takes."""
        @overload
        async def run(self, name: str, tool: Literal["wait.approval"], input: WaitApprovalInput) -> WaitApprovalOutput:
            """Asks people whether a call may be made, and waits for one who decides."""
        async def run(self, name: str, tool: str, input: Mapping[str, Any]) -> Any: ...
        @overload
        def approve(self, name: str, tool: Literal["shop.pay"], input: ShopPayInput, by: list[str], text: str = "", owner_too: bool = False, until: Optional[datetime] = None) -> Child[Decision[ShopPayOutput]]:
            """Pays money back."""
        @overload
        def approve(self, name: str, tool: Literal["shop.refund"], input: ShopRefundInput, by: list[str], text: str = "", owner_too: bool = False, until: Optional[datetime] = None) -> Child[Decision[ShopRefundOutput]]:
            """Refunds an order, once. A manager approves large amounts."""
        @overload
        def approve(self, name: str, tool: Literal["wait.answer"], input: WaitAnswerInput, by: list[str], text: str = "", owner_too: bool = False, until: Optional[datetime] = None) -> Child[Decision[WaitAnswerOutput]]:
            """Asks a person, and waits for the answer, for as long as it takes."""
        @overload
        def approve(self, name: str, tool: Literal["wait.approval"], input: WaitApprovalInput, by: list[str], text: str = "", owner_too: bool = False, until: Optional[datetime] = None) -> Child[Decision[WaitApprovalOutput]]:
            """Asks people whether a call may be made, and waits for one who decides."""
        def approve(self, name: str, tool: str, input: Mapping[str, Any], by: list[str], text: str = "", owner_too: bool = False, until: Optional[datetime] = None) -> Child[Decision[Any]]: ...
        @overload
        def start_approved(self, name: str, approval: Child[Decision[T]]) -> Child[T]: ...
        @overload
        def start_approved(self, name: str, approval: Child[dict[str, Any]]) -> Child[Any]: ...
        def start_approved(self, name: str, approval: Child[Any]) -> Child[Any]: ...
