// Requests to the engine through the gateway, and to the gateway's own API, with the reader's credentials.

/** An error response, with a readable message. `status` is 0 if there was no response. */
export class RequestFailed extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

// Never stored, only kept while the page is open.
let authorization = null;
let engineRoot = "../";

/** Address of the engine's API, relative to the page. */
export const setEngineRoot = (root) => { engineRoot = root; };

/** Sign in with an API key, or with name and password; sign out with null. */
export function signIn(credentials) {
  if (credentials === null) authorization = null;
  else if (credentials.apiKey) authorization = `ApiKey ${credentials.apiKey}`;
  else authorization = `Basic ${base64(`${credentials.username}:${credentials.password}`)}`;
}

export const isSignedIn = () => authorization !== null;

function base64(text) {
  return btoa(String.fromCharCode(...new TextEncoder().encode(text)));
}

/** Send a request to the gateway's own API. */
export const askPage = (path, body, signal) => request(`api/${path}`, body, {}, signal);

// The search log leaves out searches with this header, and the metrics count them as requests of the page.
const OF_PAGE = { "X-Es-Sbert-Page": "own" };

/**
 * Search an index; `mode` is that of the gateway: "on", "off" or "hybrid".
 *
 * `logged` is whether it is the reader's search: of the several requests for one, only one is.
 */
export async function search(index, body, mode, signal, { logged = false } = {}) {
  const path = `${engineRoot}${encodeURIComponent(index)}/_search`;
  const began = performance.now();
  const answer = await request(path, body, { "X-Es-Sbert": mode, ...(logged ? {} : OF_PAGE) }, signal);
  return { answer, milliseconds: performance.now() - began };
}

async function request(path, body, headers, signal) {
  const options = { method: body === undefined ? "GET" : "POST", headers: { ...headers }, signal, cache: "no-store" };
  if (body !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  if (authorization !== null) {
    options.headers.Authorization = authorization;
    options.credentials = "omit"; // else a refusal would open the browser's own window
  }
  let answer, text;
  try {
    answer = await fetch(path, options);
    text = await answer.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestFailed(0, "The gateway is not responding. Check that it is running, then search again.");
  }
  let said = null;
  try {
    said = JSON.parse(text);
  } catch {
    throw new RequestFailed(answer.status, `The response (HTTP ${answer.status}) is not JSON: something other than the gateway answered.`);
  }
  if (!answer.ok) throw new RequestFailed(answer.status, reasonOf(answer.status, said));
  return said;
}

/** The reason why the engine or the gateway refused, and the remedy. */
function reasonOf(status, said) {
  const error = said?.error;
  const cause = error?.root_cause?.[0]?.reason ?? error?.reason ?? (typeof error === "string" ? error : `HTTP ${status}`);
  if (status === 401) return "The engine requires authentication.";
  if (status === 403) return `Access denied: ${cause}. Ask for the index privileges read and view_index_metadata.`;
  if (status === 404) return `${cause}. Choose another index, or reload the page.`;
  return cause;
}
