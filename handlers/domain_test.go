package handlers_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/binding"
	"github.com/google/go-cmp/cmp"
)

// Shop is a domain with everything that a domain can have.
type Shop struct {
	config shopConfig
	opened []handlers.Env
}

type shopConfig struct {
	Till  string          `envconfig:"SHOP_TILL" default:"front" may:"front or back" desc:"The till."`
	Wait  time.Duration   `envconfig:"SHOP_WAIT" may:"a duration such as 5s" desc:"How long customers wait."`
	Token handlers.Secret `envconfig:"SHOP_TOKEN" may:"the token of the till" desc:"Its token."`
}

func (c *shopConfig) Wrong() map[string]string {
	wrong := map[string]string{}
	if c.Till != "front" && c.Till != "back" {
		wrong["SHOP_TILL"] = ""
	}
	if strings.Contains(string(c.Token), " ") {
		wrong["SHOP_TOKEN"] = "it has a space"
	}
	return wrong
}

func (*Shop) Order(context.Context, handlers.Tx, *handlers.Call, struct{}) (int, error) {
	return 1, nil
}

func shop() handlers.Domain {
	s := &Shop{}
	return handlers.Domain{
		Tools: s, Config: &s.config,
		Open:   func(env handlers.Env) error { s.opened = append(s.opened, env); return nil },
		Tables: fstest.MapFS{}, Grants: []string{"select, insert on orders", "select on customers"},
	}
}

// Plain is a domain without needs.
type Plain struct{}

func (Plain) Add(context.Context, *handlers.Call, struct{}) (int, error) { return 1, nil }

func TestDomainsAreBoundConfiguredAndOpened(t *testing.T) {
	t.Parallel()
	domain := shop()
	program := []any{Plain{}, domain}
	bound, err := binding.Bind(program...)
	if err != nil {
		t.Fatal(err)
	}
	for tool, want := range map[string]string{"shop.order": "handlers/domain_test.go Shop.Order",
		"plain.add": "handlers/domain_test.go Plain.Add"} {
		h, ok := bound.For(tool)
		if !ok || h.File+" "+h.Func != want {
			t.Errorf("%s: %+v", tool, h)
		}
	}
	var names []string
	for _, d := range binding.Domains(program...) {
		names = append(names, d.Name())
	}
	if diff := cmp.Diff([]string{"plain", "shop"}, names); diff != "" {
		t.Error(diff)
	}

	set := map[string]string{"SHOP_WAIT": " 5s ", "SHOP_TOKEN": "t"}
	if err := binding.Configure(func(name string) string { return set[name] }, program...); err != nil {
		t.Fatal(err)
	}
	s := domain.Tools.(*Shop)
	if want := (shopConfig{Till: "front", Wait: 5 * time.Second, Token: "t"}); s.config != want {
		t.Errorf("got %+v", s.config)
	}
	if err := binding.Open(handlers.Env{}, program...); err != nil {
		t.Fatal(err)
	}
	if len(s.opened) != 1 || s.opened[0].Log == nil || s.opened[0].Transport == nil {
		t.Errorf("opened with %+v", s.opened)
	}
	if diff := cmp.Diff([]string{"orders", "customers"}, s.opened[0].Tables); diff != "" {
		t.Error(diff)
	}
}

func TestAllWrongValuesAreReportedAtOnceWithoutTheSecretOnes(t *testing.T) {
	t.Parallel()
	set := map[string]string{"SHOP_TILL": "side", "SHOP_WAIT": "soon", "SHOP_TOKEN": "hunter2 x"}
	err := binding.Configure(func(name string) string { return set[name] }, shop())
	want := `SHOP_TILL is "side"; it may be front or back
SHOP_WAIT is "soon"; it may be a duration such as 5s
SHOP_TOKEN is not valid (its value is not shown): it has a space; it may be the token of the till`
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// branchConfig has the name of a further variable in one of its own.
type branchConfig struct {
	Branch string `envconfig:"SHOP_BRANCH" may:"the branch" desc:"The branch."`

	key handlers.Secret
}

func (c *branchConfig) Lookup(lookup func(string) string) {
	c.key = handlers.Secret(lookup(c.Branch + "_API_KEY"))
}

func (c *branchConfig) Wrong() map[string]string {
	if c.key == "" {
		return map[string]string{"SHOP_BRANCH": "it has no key"}
	}
	return nil
}

func TestAConfigLooksUpVariablesThatItsOwnName(t *testing.T) {
	t.Parallel()
	set := map[string]string{"SHOP_BRANCH": " EAST ", "EAST_API_KEY": " k\n"}
	config := &branchConfig{}
	domain := handlers.Domain{Tools: Plain{}, Config: config}
	lookup := func(name string) string { return set[name] }
	if err := binding.Configure(lookup, domain); err != nil || config.key != "k" {
		t.Errorf("got %q, %v", config.key.Reveal(), err)
	}
	set["EAST_API_KEY"] = " "
	if err := binding.Configure(lookup, domain); err == nil || !strings.Contains(err.Error(), "it has no key") {
		t.Errorf("got %v", err)
	}
}

func TestAnErrorOfOpenNamesTheDomain(t *testing.T) {
	t.Parallel()
	domain := shop()
	domain.Open = func(handlers.Env) error { return errors.New("the till is stuck") }
	err := binding.Open(handlers.Env{}, domain)
	if err == nil || err.Error() != "open the domain shop: the till is stuck" {
		t.Errorf("got %v", err)
	}
}

type Wrong struct{}

func (Wrong) NoStruct(context.Context, *handlers.Call, string) (int, error)  { return 0, nil }
func (Wrong) NoError(context.Context, *handlers.Call, struct{}) int          { return 0 }
func (Wrong) TwoDots(context.Context, *handlers.Call, struct{}) (int, error) { return 0, nil }

//nolint:revive // the tool name of TwoDots
func (Wrong) Two_dots(context.Context, *handlers.Call, struct{}) (int, error) { return 0, nil }
func (Wrong) TxBehind(context.Context, *handlers.Call, handlers.Tx, struct{}) (int, error) {
	return 0, nil
}

func TestBindReportsAllMethodsThatAreNotHandlers(t *testing.T) {
	t.Parallel()
	_, err := binding.Bind(Wrong{}, handlers.Domain{})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"Wrong.NoError in ", "Wrong.NoStruct in ", "Wrong.TxBehind in ",
		"Wrong.Two_dots and Wrong.TwoDots have", "domain 2 has no Tools"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in:\n%v", want, err)
		}
	}
}
