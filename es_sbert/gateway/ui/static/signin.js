// Signing in, where the engine asks for it.

import { byId } from "./dom.js";
import { isSignedIn, signIn } from "./engine.js";

/** Show the form; gives what it says, which a screen reader would not come by. */
export function askToSignIn() {
  const reason = isSignedIn() ? "The engine rejected this user name and password, or this API key." : "The engine requires authentication.";
  byId("sign-in-reason").textContent = reason;
  byId("sign-in-warning").hidden = isSecureContext;
  byId("sign-in").hidden = false;
  byId("sign-out").hidden = true;
  byId("username").focus();
  return reason;
}

/** The engine has answered: put the form away. */
export function signedIn() {
  byId("sign-in").hidden = true;
  byId("sign-out").hidden = !isSignedIn();
}

/** Have `begin` called whenever somebody has signed in or out, and `forget` before it when out. */
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
