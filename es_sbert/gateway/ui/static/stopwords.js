// Words of a query to highlight, without those in nearly every text. No input or output.

const listOf = (words) => new Set(words.trim().split(/\s+/));

// Function words. If languages share a word, the language with the most words of the query is used.
const LANGUAGES = [
  // English
  `a about above after again against all also am an and any are as at be because been before being below between both
  but by can could did do does doing done down during each few for from further had has have having he her here hers him
  his how i if in into is it its just may me might more most must my no nor not now of off on once only or other our ours
  out over own same shall she should so some such than that the their theirs them then there these they this those
  through to too under until up upon us very was we were what when where whether which while who whom whose why will
  with within without would you your yours`,
  // German
  `aber alle allem allen aller alles als also am an auch auf aus bei beim bin bis bist da damit dann das dass dem den denn
  der des dessen die dies diese diesem diesen dieser dieses doch dort du durch ein eine einem einen einer eines er es
  etwas für gegen hat hatte hatten haben hier hinter ich ihm ihn ihnen ihr ihre ihrem ihren ihrer im in ins ist ja jede
  jedem jeden jeder jedes kann kein keine keinem keinen keiner können man mein meine mich mir mit muss müssen nach nicht
  noch nun nur ob oder ohne sehr sein seine seinem seinen seiner sich sie sind so soll sollte über um und uns unser unter
  vom von vor wann war waren warum was weil welche welchem welchen welcher welches wenn wer werden wie wieder wir wird wo
  wurde wurden zu zum zur zwischen`,
  // French
  `à afin ai alors après au aucun aussi autre aux avant avec avoir c ce cela ces cet cette ceux chaque chez comme comment
  dans de depuis des donc dont du elle elles en encore entre est et été être eu eux fait il ils j je l la le les leur
  leurs lui ma mais me même mes moi mon ne ni nos notre nous on ont ou où par parce pas pendant peu plus pour pourquoi qu
  quand que quel quelle quelles quels qui sa sans se sera ses si son sont sous sur ta te tes toi ton tous tout toute
  toutes très tu un une vos votre vous y`,
  // Spanish
  `a al algo algunas algunos ante antes aquel aquella así aún aunque bajo cada como cómo con contra cual cuál cuando cuándo
  de del desde donde dónde dos durante e el él ella ellas ellos en entre era es esa ese eso esta está están estas este
  esto estos fue fueron ha hacia han hasta hay la las le les lo los más me mi mis mucho muy nada ni no nos nosotros o os
  otra otro otros para pero poco por porque qué que quien quién se sea según ser si sí sido sin sobre son su sus también
  tan tanto te tiene tienen todo todos tu tus un una unas uno unos y ya yo`,
  // Italian
  `a agli ai al alla alle allo anche c che chi ci come con contro cosa così cui da dagli dai dal dalla dalle dallo degli dei
  del della delle dello di dopo dove e è ed era essere fra già gli ha hanno i il in io l la le lei li lo loro lui ma me
  mentre mi mia mie miei mio molto ne negli nei nel nella nelle nello noi non nostra nostro o ogni per perché però più
  poi prima qual quale quali quando quanto quella quelle quelli quello questa queste questi questo qui se sempre senza si
  sia siamo sono sotto sta su sua sue sugli sui sul sulla sulle sullo suo suoi tra tu tutti tutto un una uno vi voi`,
  // Portuguese
  `a à ao aos aquela aquele aqui as às até cada com como da das de dela dele depois do dos e é ela elas ele eles em entre
  era essa essas esse esses esta está estão estas este estes eu foi foram há isso isto já lhe mais mas me mesmo meu minha
  muito na não nas nem no nos nós nossa nosso num numa o onde os ou para pela pelas pelo pelos por porque qual quando que
  quem se sem ser seu seus só sobre sua suas também te tem têm todo todos tu um uma umas uns você vocês`,
  // Dutch
  `aan al alle als altijd ander andere ben bij daar dan dat de der deze die dit doen door dus een en er ge geen haar had
  heb hebben heeft hem het hier hij hoe hun iets ik in is ja je kan kon maar me meer men met mij mijn moet na naar niet
  niets nog nu of om omdat onder ons ook op over reeds te tegen toch toen tot u uit uw van veel voor waarom waar wat we
  wel welke werd wie wij wil worden wordt zal ze zich zij zijn zo zonder zou`,
].map(listOf);

// Roughly the words that engines find in a text: an apostrophe is part of a word, a hyphen ends it.
const WORD = /[\p{L}\p{M}\p{N}]+(?:['’][\p{L}\p{M}\p{N}]+)*/gu;
const SHORT_FORMS = [/$/u, /['’](?:s|d|m|t|re|ve|ll)$/u, /n['’]t$/u]; // what's, they're, can't, don't
const ONE_LETTER = /^\p{L}\p{M}*$/u;
// Scripts in which one character is a word, or most of one.
const IDEOGRAPH = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}]/u;

/**
 * The words of a query that highlights are made of, separated by spaces; null if all of it is to be highlighted: it
 * has nothing to leave out, or nothing else. Left out are stop words and single letters.
 */
export function wordsToHighlight(query) {
  const words = query.normalize("NFC").match(WORD) ?? [];
  const isStopWord = (list, word) => SHORT_FORMS.some((ending) => list.has(word.toLowerCase().replace(ending, "")));
  const known = LANGUAGES.map((list) => words.filter((word) => isStopWord(list, word)).length);
  const list = LANGUAGES[known.indexOf(Math.max(...known))];
  const isLetter = (word) => ONE_LETTER.test(word) && !IDEOGRAPH.test(word);
  const kept = words.filter((word) => !isStopWord(list, word) && !isLetter(word));
  return kept.length === 0 || kept.length === words.length ? null : kept.join(" ");
}
