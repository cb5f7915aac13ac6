// Signing in, if the engine requires it.

import { byId } from "./dom.js";
import { isSignedIn, signIn } from "./engine.js";

/** Show the form; returns its text, to announce it to screen readers. */
export function askToSignIn() {
  const reason = isSignedIn() ? "The engine rejected this user name and password, or this API key." : "The engine requires authentication.";
  byId("sign-in-reason").textContent = reason;
  byId("sign-in-warning").hidden = isSecureContext;
  byId("sign-in").hidden = false;
  byId("sign-out").hidden = true;
  byId("username").focus();
  return reason;
}

/** Hide the form once the engine has answered. */
export function signedIn() {
  byId("sign-in").hidden = true;
  byId("sign-out").hidden = !isSignedIn();
}

/** Call `begin` after every sign-in or sign-out, and before it `forget` after a sign-out. */
export function signingIn(begin, forget) {
  byId("sign-in").addEventListener("submit", (event) => {
    event.preventDefault();
    signIn({ username: byId("username").value, password: byId("password").value, apiKey: byId("api-key").value });
    byId("password").value = "";
    byId("api-key").value = "";
    void begin();
  });
  byId("sign-out").addEventListener("click", () => {
    signIn(null);
    forget();
    void begin();
  });
}
