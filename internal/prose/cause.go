package prose

import (
	"encoding/json"
	"strings"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/receipts"
)

// whatNext returns the next step after an error of a tool: the tool's advice, otherwise the likely cause. It is empty
// if the tool returned its own code and neither is known.
func whatNext(r *receipts.Receipt, e receipts.Error) string {
	var of struct{ Advice handlers.Advice }
	_ = json.Unmarshal(e.Details, &of) // details may be anything
	switch of.Advice {
	case handlers.Never:
		return "The tool advises not to repeat the call: it would fail again."
	case handlers.Later:
		return "The tool advises to repeat the call later."
	case handlers.ChangeInput:
		return "The tool advises to make a new call with another input."
	}
	cause := causeOfFailure(r, e)
	switch {
	case e.Code != receipts.ExecutionError:
		return cause
	case cause != "":
		return cause + " Then make a new call."
	case HidesItsCause(r):
		return "That is a fault in the tool's code, not in the input."
	}
	return "If the input is wrong, correct it; then make a new call."
}

// HidesItsCause reports whether a call failed with an error of Postgres, which only operators may read: see
// [client.Explanation.Context].
func HidesItsCause(r *receipts.Receipt) bool {
	e, failed := r.Error()
	var of struct{ SQLState, Reference string }
	return failed && e.Code == receipts.ExecutionError && json.Unmarshal(e.Details, &of) == nil && of.SQLState != "" &&
		of.Reference != ""
}

// causeOfFailure returns the likely cause of a failed request to a tool's service, or "" if it is unknown.
func causeOfFailure(r *receipts.Receipt, e receipts.Error) string {
	var effects receipts.Effects
	_ = json.Unmarshal(r.Effects, &effects) // an imported receipt may have another form
	status := 0
	for _, c := range effects.ExternalCalls {
		if strings.HasPrefix(r.ToolName, c.Service+".") { // the tool's own service has the name of its domain
			status = c.StatusCode
		}
	}
	own := e.Code != receipts.ExecutionError
	switch {
	case status == 401 || status == 403 && !own:
		return "The service refused the request before it ran the tool. Most likely its secret differs from the one that " +
			"the worker " +
			"signs with: compare it with the variable that secret_env names in domains.json, and compare the clocks."
	case own: // the tool explains its own failures
		return ""
	case status >= 300 && status < 400:
		return "The address redirects, and GEM follows no redirects, since it would send its credentials there: write the " +
			"final " +
			"address into domains.json."
	}
	return causeOf(e.Message)
}

// causeOf returns the likely cause of an error by its message, or "" if it is unknown.
func causeOf(message string) string {
	has := func(any ...string) bool {
		for _, text := range any {
			if strings.Contains(message, text) {
				return true
			}
		}
		return false
	}
	switch {
	case has("x509:", "tls: ", "certificate"):
		return "The connection is not trusted: the certificate has expired, is for another host, or is signed by an " +
			"authority " +
			"that the worker does not know (SSL_CERT_FILE names more of them); or the port does not speak TLS."
	case has("could not be resolved", "no such host"):
		return "The worker cannot resolve the host's name: check its spelling in domains.json, and the worker's DNS."
	case has("connection refused"):
		return "Nothing listens at that address: start the service, or correct the host and port."
	case has("could not be connected", "cannot be reached", "i/o timeout", "no route to host", "network is unreachable"):
		return "The worker cannot reach the host: check the address, and whether a firewall or a private network is in " +
			"between."
	}
	return ""
}
