// How the page writes numbers, in its own language, and dates, in the reader's.

const LANGUAGE = "en";
const counts = new Intl.NumberFormat(LANGUAGE, { maximumFractionDigits: 0 });
const cosines = new Intl.NumberFormat(LANGUAGE, { minimumFractionDigits: 3, maximumFractionDigits: 3, signDisplay: "negative" });
const scores = new Intl.NumberFormat(LANGUAGE, { minimumFractionDigits: 2, maximumFractionDigits: 2 });

/** A count: 1,234. */
export const countText = (number) => counts.format(number);

/** A time in milliseconds: 1,234 ms. */
export const durationText = (milliseconds) => `${counts.format(milliseconds)} ms`;

/** A cosine similarity: 0.123. */
export const cosineText = (cosine) => cosines.format(cosine).replace("-", "−");

/** A score that has no unit and no upper bound: 1,234.50. */
export const scoreText = (score) => scores.format(score);

const DATE = /^\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?$/;
const days = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" });
const calendar = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeZone: "UTC" });

/** A date of a document in the reader's language and time zone; null if the value is not a date. */
export function dateText(value) {
  if (typeof value !== "string" || !DATE.test(value)) return null;
  const date = new Date(value);
  if (Number.isNaN(date.getTime())) return null;
  return (value.length === 10 ? calendar : days).format(date); // a day without a time has no time zone
}
