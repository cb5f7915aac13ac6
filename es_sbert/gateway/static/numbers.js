// How the page writes numbers: one format for each kind, in the page's own language.

const LANGUAGE = "en";
const counts = new Intl.NumberFormat(LANGUAGE, { maximumFractionDigits: 0 });
// "min2": a year stays 1998, a population becomes 83,000.
const whole = new Intl.NumberFormat(LANGUAGE, { maximumFractionDigits: 0, useGrouping: "min2" });
const fractions = new Intl.NumberFormat(LANGUAGE, { maximumSignificantDigits: 8, useGrouping: "min2" });
const cosines = new Intl.NumberFormat(LANGUAGE, { minimumFractionDigits: 3, maximumFractionDigits: 3, signDisplay: "negative" });
const scores = new Intl.NumberFormat(LANGUAGE, { minimumFractionDigits: 2, maximumFractionDigits: 2 });

/** A count: 1,234. */
export const countText = (number) => counts.format(number);

/** A time in milliseconds: 1,234 ms. */
export const durationText = (milliseconds) => `${counts.format(milliseconds)} ms`;

/** A cosine similarity: 0.123. */
export const cosineText = (cosine) => cosines.format(cosine);

/** A score that has no unit and no upper bound: 1,234.50. */
export const scoreText = (score) => scores.format(score);

/** A number from a document: 1998, 12,500, 0.1. */
export const valueText = (number) => (Number.isInteger(number) ? whole : fractions).format(number);
