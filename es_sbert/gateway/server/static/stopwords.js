// Words that are in nearly every text. No input or output.

import { STOP_WORDS } from "./stop_word_lists.js";

// Languages share words: the language with the most words of the query is used.
const LANGUAGES = STOP_WORDS.map((words) => new Set(words));

// Roughly the words that engines find in a text: an apostrophe is part of a word, a hyphen ends it.
const WORD = /[\p{L}\p{M}\p{N}]+(?:['’][\p{L}\p{M}\p{N}]+)*/gu;
const SHORT_FORMS = [/$/u, /['’](?:s|d|m|t|re|ve|ll)$/u, /n['’]t$/u]; // what's, they're, can't, don't
const ONE_LETTER = /^\p{L}\p{M}*$/u;
// Scripts in which one character is a word, or most of one.
const IDEOGRAPH = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}]/u;

/** Whether a word is a stop word in the language of a query, or a single letter, as a function; none is if the query has no other words. */
export function commonWords(query) {
  const words = query.normalize("NFC").match(WORD) ?? [];
  const isStopWord = (list, word) => SHORT_FORMS.some((ending) => list.has(word.toLowerCase().replace(ending, "")));
  const known = LANGUAGES.map((list) => words.filter((word) => isStopWord(list, word)).length);
  const list = LANGUAGES[known.indexOf(Math.max(...known))];
  const isCommon = (word) => isStopWord(list, word) || (ONE_LETTER.test(word) && !IDEOGRAPH.test(word));
  return words.every(isCommon) ? () => false : isCommon;
}
