package handlers

// Deps is what the built-in domains need from outside. Its zero value works: the tools that miss something answer
// not_configured, with the names of the environment variables to set.
type Deps struct {
	// DB is where comms keeps its log of messages, outside the call's transaction. It may be nil where nothing is run,
	// such as in a listing of tools.
	DB     DB
	SMTP   SMTP
	Twilio Twilio
	HTTP   HTTPConfig
}

// SMTP is the mail server that comms.send_email hands its messages to.
type SMTP struct {
	Host string // SMTP_HOST
	Port int    // SMTP_PORT; 0 means 587 for starttls, 465 for tls, 25 for none
	// Username and Password (SMTP_USERNAME, SMTP_PASSWORD) belong together; without both there is no login. They are sent
	// over an encrypted connection, or by a method that does not reveal the password, or to localhost.
	Username, Password string
	From               string // SMTP_FROM: office@example.com, or Acme Roofing <office@example.com>
	TLS                string // SMTP_TLS: starttls (the default, and then required), tls from the first byte, or none
}

// Twilio is the account that comms.send_sms sends from.
type Twilio struct {
	AccountSID string // TWILIO_ACCOUNT_SID
	AuthToken  string // TWILIO_AUTH_TOKEN
	From       string // TWILIO_FROM: a number of the account, such as +15551234567
	BaseURL    string // TWILIO_BASE_URL; https://api.twilio.com when empty
}

// HTTPConfig says what http.request may reach: nothing, as long as AllowedHosts is empty.
type HTTPConfig struct {
	// AllowedHosts (HTTP_ALLOWED_HOSTS) lists hosts, as names or addresses. `api.example.com` allows that host on the
	// scheme's own port (80 or 443) and at public addresses alone; `intranet.example:8443` allows that very port, and also
	// an address in a private network, since whoever wrote the port knows the service. IPv6 stands in brackets.
	AllowedHosts []string
}

// BuiltIn returns the domains that come with GEM, for [Bind].
func BuiltIn(d Deps) []any {
	return []any{OS{}, Leads{}, Entity{}, newComms(d), newHTTP(d.HTTP, nil)}
}
