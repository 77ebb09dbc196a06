"""`SiteBase`: what is said of one named rounding event; each operation declares its own sites."""

from enum import StrEnum
from typing import Self

from roundscope.emu.errors import unknown


class SiteBase(StrEnum):
    """A place of an operation where a result is rounded; an operation's sites are its subclass.

    A member is a string that equals its name. A function that takes a site also takes its name, in
    upper or lower case. The documentation of a member is put together from the attributes below.

    Attributes:
        formula: What is rounded. The name of another site means the rounded result of that site.
        axes: Which axes the array of the event has, in words, such as "rows x features".
        stage: "inputs", "forward" or "backward".
        stream: Number of the random stream from which stochastic rounding at the site draws. The
            numbers never change, since every result of stochastic rounding depends on them. A new
            site takes the next free number, whatever its position in the list.
        instead: Of an event that only some plans have, the event that has its place in other plans;
            "" for all others.
        ordinal: The position among the sites of the operation, from 0.
    """

    formula: str
    axes: StrEnum
    stage: str
    stream: int
    instead: str
    ordinal: int

    def __new__(
        cls, value: str, formula: str, axes: StrEnum, stage: str, stream: int, instead: str = ""
    ) -> Self:
        self = str.__new__(cls, value)
        self._value_ = value
        self.formula, self.axes, self.stage, self.stream = formula, axes, stage, stream
        self.instead, self.ordinal = instead, len(cls.__members__)
        self.__doc__ = f"{value}: {formula} ({axes}, {stage})."
        return self

    @property
    def has_columns(self) -> bool:
        """Whether the second index of an entry is that of a column, as of a matrix of scores.

        Other entries have a feature there, or nothing.
        """
        return False

    @property
    def has_second(self) -> bool:
        """Whether the array of the event has a second axis, of columns or of features."""
        return " x " in str(self.axes)

    @classmethod
    def named(cls, name: str) -> Self:
        """Return the site of a name, in upper or lower case.

        Raises:
            ValueError: There is no such site, and the message names the nearest one; or it is a
                site of another operation, which may have the same name.
        """
        if isinstance(name, cls):
            return name
        if isinstance(name, SiteBase):  # a string that equals the name of a site here
            raise ValueError(
                f"site={name!r}: a site of another operation; give one of {cls.__name__}"
            )
        try:
            return cls[name.upper() if isinstance(name, str) else ""]
        except KeyError:
            every = [site for site in cls if not site.instead]
            raise ValueError(unknown("site", name, every)) from None


class Axes(StrEnum):
    """Which axes the array of an event of a row-wise operation has."""

    RF = "rows x features"
    """One entry per feature of a row (token), (R, F)."""
    R = "rows"
    """One entry per row, (R,)."""
    F = "features"
    """One entry per feature, (F,)."""
    GF = "outputs x features"
    """One entry per feature of each row of a matrix of parameters, (G, F)."""
    ONE = "the call"
    """One entry, (1,)."""
