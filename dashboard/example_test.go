package dashboard_test

import (
	"context"
	"log"
	"net/http"
	"os"

	"github.com/gemworker/gem/dashboard"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A server that signs its users in serves the pages below /ops/.
func Example() {
	monitor, err := pgxpool.New(context.Background(), os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	operator, err := pgxpool.New(context.Background(), os.Getenv("GEM_DASHBOARD_ACT_URL"))
	if err != nil {
		log.Fatal(err)
	}
	pages, err := dashboard.New(dashboard.Options{Read: monitor, Act: operator, Prefix: "/ops",
		User: func(r *http.Request) (dashboard.User, error) {
			name, _, ok := r.BasicAuth() // replace it by the server's own sessions
			if !ok {
				return dashboard.User{}, dashboard.ErrNoUser
			}
			return dashboard.User{Name: name, Subject: name, Operator: name == "ada"}, nil
		}})
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("/ops/", pages)
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", nil))
}
